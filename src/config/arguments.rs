//! The flags of a command as arguments of clap, for the command line and its help.

use std::marker::PhantomData;

use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::flag::{self, FlagGroup};
use super::raw::RawFlags;

/// The flags of a command, and the `kind` of its configuration file.
pub trait CommandFlags {
    /// The flags, grouped as in the help text.
    const FLAGS: &'static [&'static FlagGroup];
    /// `kind` of its configuration file.
    const KIND: &'static str;
}

/// The flags of a command line, not validated yet.
#[derive(Clone, Debug, Default)]
pub struct Arguments<R> {
    pub(super) raw: RawFlags,
    role: PhantomData<R>,
}

impl<R: CommandFlags> Args for Arguments<R> {
    fn augment_args(command: Command) -> Command {
        flag::augment(command, R::FLAGS)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<R: CommandFlags> FromArgMatches for Arguments<R> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Arguments { raw: RawFlags::from_command_line(matches, R::FLAGS), role: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
