//! Which APIServices, Services and endpoints exist.
