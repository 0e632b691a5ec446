//! Whether a backend answers.
