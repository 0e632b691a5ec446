//! The flags of a command as arguments of clap, for the command line and its help.

use std::marker::PhantomData;

use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::flag::{self, Flag, Group};
use super::written::Written;

/// The flags of a command, and the `kind` of its configuration file.
pub trait Role {
    /// The flags, grouped as in the help text.
    const FLAGS: &'static [&'static Group];
    /// Reserved flags; giving one is an error that names the alternative.
    const LATER: &'static [Flag];
    /// `kind` of its configuration file.
    const KIND: &'static str;
}

/// The flags of a command line, not validated yet.
#[derive(Clone, Debug, Default)]
pub struct Arguments<R> {
    pub(super) written: Written,
    role: PhantomData<R>,
}

impl<R: Role> Args for Arguments<R> {
    fn augment_args(command: Command) -> Command {
        flag::augment(command, R::FLAGS, R::LATER)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<R: Role> FromArgMatches for Arguments<R> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Arguments { written: Written::on_command_line(matches, R::FLAGS, R::LATER), role: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
