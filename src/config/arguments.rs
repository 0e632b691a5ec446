//! The flags of a role as arguments of clap, for the command line and its help.

use std::marker::PhantomData;

use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::flag::{self, Flag, Group};
use super::written::Written;

/// A role: which flags it has, and what its configuration file calls itself.
pub trait Role {
    /// The flags, as shown in the help.
    const FLAGS: &'static [&'static Group];
    /// Flags that are answered with what there is instead.
    const LATER: &'static [Flag];
    /// `kind` of its configuration file.
    const KIND: &'static str;
}

/// What the command line says to a role; nothing is judged yet.
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
