//! Process-wide services: graceful shutdown, notifications to the service manager, watched files, published snapshots,
//! socket options, deadlines, and problems found in configuration.

mod change_log;
mod configuration;
mod deadline;
mod drain;
mod fair_budget;
mod field_reader;
mod file;
mod problem;
mod published;
mod sd_notify;
mod sharded_map;
mod socket;
mod user_map;
mod user_turns;

pub use change_log::ChangeLog;
pub use configuration::{parse_configuration, parse_single_object};
pub use deadline::{Deadline, wake_pending_deadlines, with_deadline};
pub use drain::{Drain, Drainer, ShutdownPhase};
pub use fair_budget::{BudgetShare, FairBudget, Reservation};
pub use field_reader::FieldReader;
pub use file::atomic_write::{replace_file, write_new};
pub(crate) use file::csv;
pub use file::document::{ManifestDocument, is_json, parse_documents, read_text_file, read_text_with_metadata};
pub use file::file_errors::FileErrors;
pub use file::file_watcher::{FileWatcher, is_temporary_name};
pub use file::watched_file::{OnFailure, ReloadReporter, WatchedFile, WatchedFileContent};
pub use problem::{HelpTopic, Problem, Problems};
pub use published::{Published, Publisher, changed_or_pending};
pub use sd_notify::{SdNotify, watchdog_timeout};
pub use sharded_map::ShardedMap;
pub use socket::{configure_socket, configure_socket_with_keep_alive};
pub use user_turns::{UserTurn, UserTurns};
