//! Process-wide services: graceful shutdown, watched files, published snapshots, socket options, deadlines, and
//! problems found in configuration.

mod configuration;
mod deadline;
mod document;
mod drain;
mod fields;
mod follow;
mod followed_file;
mod lately;
mod problem;
mod published;
mod sharded;
mod shares;
mod socket;
mod user_turns;
mod written;

pub use configuration::{configuration, one_object};
pub use deadline::{Deadline, wake_waiting, within};
pub use document::{Document, documents, is_json, read_text, text_of};
pub use drain::{Drain, Drainer, Phase};
pub use fields::Fields;
pub use follow::{Follower, is_passing};
pub use followed_file::{Followed, FollowedFile, OnFailure, Readings};
pub use lately::Lately;
pub use problem::{Problem, Problems};
pub use published::{Published, Publisher, changed_if_any};
pub use sharded::Sharded;
pub use shares::{Reservation, Share, Shares};
pub use socket::{set_up, set_up_with};
pub use user_turns::{UserTurn, UserTurns};
pub use written::{replace, write_new};
