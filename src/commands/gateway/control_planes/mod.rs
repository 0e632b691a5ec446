//! The control planes behind one gateway (`--control-planes-config`).
//!
//! [`ControlPlaneTable`] says which control plane gets a request. The thread of [`ControlPlanesThread`] is its one
//! writer: it starts control planes, and ends those that are removed or changed, without touching others.

mod prefix_tree;
mod table;
mod thread;

pub(super) use self::table::{
    ControlPlane, ControlPlaneInstance, ControlPlaneParts, ControlPlaneState, ControlPlaneTable, SelectionError,
};
pub(super) use self::thread::{ControlPlanesThread, StartControlPlane};
