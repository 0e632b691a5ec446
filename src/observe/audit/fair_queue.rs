//! Waiting and taken events with a share for each control plane, and in it for each user.
//!
//! When the queue is full, only control planes above their fair share lose events to others; within a control plane, only
//! users above theirs, newest first. Events are taken in turns of about equal cost (deficit round robin): first of the
//! control planes, then of the users of one.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::event::AuditEvent;

/// Cost of the events taken in one turn, in bytes.
const TURN_QUANTUM: i64 = 64 << 10;

/// Number and size of events, or the limit of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) events: usize,
    pub(super) bytes: usize,
}

/// Name of a control plane; `None` for requests to none.
type ControlPlane = Option<Arc<str>>;

/// Events of all control planes.
#[derive(Default)]
pub(super) struct FairQueue {
    control_planes: HashMap<ControlPlane, ControlPlaneQueue>,
    /// Control planes with waiting events, in the order of their turns.
    turns: VecDeque<ControlPlane>,
    waiting: usize,
    usage: Usage,
    /// The number of the next event.
    next: u64,
}

/// Events of one control plane.
#[derive(Default)]
struct ControlPlaneQueue {
    users: HashMap<Arc<str>, UserQueue>,
    /// Users with waiting events, in the order of their turns.
    turns: VecDeque<Arc<str>>,
    waiting: usize,
    /// Waiting and taken events.
    usage: Usage,
    turn: Turn,
}

/// Events of one user.
#[derive(Default)]
struct UserQueue {
    waiting: VecDeque<(u64, Arc<AuditEvent>)>,
    /// Waiting and taken events.
    usage: Usage,
    turn: Turn,
}

/// State of a control plane or user in the deficit round robin.
#[derive(Default)]
struct Turn {
    is_queued: bool,
    /// Remaining cost of this turn; negative after an event that cost more than a turn.
    credit: i64,
}

/// The exhausted limit: number of events or bytes. Shares are compared by it.
#[derive(Clone, Copy)]
enum Measure {
    Events,
    Bytes,
}

impl FairQueue {
    /// Makes room for `event`, unless its owner has a fair share. Returns whether there is room, and the number of dropped
    /// events of others.
    pub(super) fn make_room(&mut self, event: &AuditEvent, limit: Usage) -> (bool, usize) {
        let bytes = event.weight();
        let mut dropped = 0;
        loop {
            let (measure, more) = match () {
                () if self.usage.events >= limit.events => (Measure::Events, 1),
                () if self.usage.bytes + bytes > limit.bytes => (Measure::Bytes, bytes),
                () => return (true, dropped),
            };
            let Some((control_plane, user)) = self.victim(event, measure, more, limit.get(measure)) else {
                return (false, dropped);
            };
            self.drop_newest(&control_plane, &user);
            dropped += 1;
        }
    }

    /// Who loses an event to the owner of `event`; `None` if the owner has a fair share.
    fn victim(
        &self,
        event: &AuditEvent,
        measure: Measure,
        more: usize,
        limit: usize,
    ) -> Option<(ControlPlane, Arc<str>)> {
        let (control_plane, user) = event.owner();
        let own = self.control_planes.get(control_plane);
        let own_size = own.map_or(0, |own| own.usage.get(measure));
        let fair = limit / (self.control_planes.len() + usize::from(own.is_none()));
        if own_size + more <= fair {
            let others = self.control_planes.iter();
            let (name, largest) = others
                .filter(|(_, other)| other.waiting > 0 && other.usage.get(measure) > fair)
                .max_by_key(|(_, other)| other.usage.get(measure))?;
            return Some((name.clone(), largest.largest_user(measure, 0)?));
        }
        let own = own?;
        let users = own.users.len() + usize::from(!own.users.contains_key(user));
        // The users share what other control planes leave.
        let fair = limit.saturating_sub(self.usage.get(measure) - own_size) / users;
        if own.users.get(user).map_or(0, |user| user.usage.get(measure)) + more > fair {
            return None;
        }
        Some((control_plane.clone(), own.largest_user(measure, fair)?))
    }

    fn drop_newest(&mut self, name: &ControlPlane, user: &str) {
        let Some(control_plane) = self.control_planes.get_mut(name) else { return };
        let Some(weight) = control_plane.drop_newest(user) else { return };
        self.waiting -= 1;
        self.usage.subtract(weight);
        // Who holds nothing has no share, or those of others would be smaller.
        if control_plane.usage.events == 0 {
            self.control_planes.remove(name);
            self.turns.retain(|turn| turn != name);
        }
    }

    pub(super) fn append(&mut self, event: &Arc<AuditEvent>) {
        let (name, user) = event.owner();
        let control_plane = self.control_planes.entry(name.clone()).or_default();
        if !std::mem::replace(&mut control_plane.turn.is_queued, true) {
            self.turns.push_back(name.clone());
        }
        control_plane.append(user, self.next, event.clone());
        self.next += 1;
        self.waiting += 1;
        self.usage.add(event.weight());
    }

    /// Takes waiting events, at most those of `limit` but at least one, in the order in which they were appended.
    pub(super) fn take(&mut self, limit: Usage) -> Vec<Arc<AuditEvent>> {
        let (mut events, mut bytes) = (Vec::new(), 0);
        while let Some(control_plane) = self.next_control_plane() {
            let Some((user, weight)) = control_plane.next_user() else { break };
            if events.len() >= limit.events || !events.is_empty() && bytes + weight > limit.bytes {
                break;
            }
            bytes += weight;
            events.extend(control_plane.take(&user));
            // Without waiting events, its turn ends when it is looked at next.
            let is_over = control_plane.turn.credit <= 0;
            self.waiting -= 1;
            if is_over {
                self.turns.rotate_left(1);
            }
        }
        events.sort_unstable_by_key(|(number, _)| *number);
        events.into_iter().map(|(_, event)| event).collect()
    }

    /// The control plane whose turn it is.
    fn next_control_plane(&mut self) -> Option<&mut ControlPlaneQueue> {
        loop {
            let name = self.turns.front()?;
            match self.control_planes.get_mut(name) {
                Some(control_plane) if control_plane.waiting > 0 => {
                    if control_plane.turn.has_credit() {
                        break;
                    }
                    self.turns.rotate_left(1);
                }
                ended => {
                    ended.into_iter().for_each(|control_plane| control_plane.turn = Turn::default());
                    self.turns.pop_front();
                }
            }
        }
        self.control_planes.get_mut(self.turns.front()?)
    }

    /// Ends what taken events hold.
    pub(super) fn release(&mut self, events: &[Arc<AuditEvent>]) {
        for event in events {
            let ((name, user), weight) = (event.owner(), event.weight());
            self.usage.subtract(weight);
            let Some(control_plane) = self.control_planes.get_mut(name) else { continue };
            control_plane.release(user, weight);
            if control_plane.usage.events == 0
                && let Some(ended) = self.control_planes.remove(name)
                && ended.turn.is_queued
            {
                self.turns.retain(|turn| turn != name);
            }
        }
    }

    /// Number of waiting events.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Waiting and taken events.
    pub(super) fn usage(&self) -> Usage {
        self.usage
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.control_planes.is_empty()
    }

    /// Names of the users without control plane, in the order of their turns, and how many have a share.
    #[cfg(test)]
    pub(super) fn users(&self) -> (Vec<&str>, usize) {
        let Some(control_plane) = self.control_planes.get(&None) else { return (Vec::new(), 0) };
        (control_plane.turns.iter().map(|user| &**user).collect(), control_plane.users.len())
    }

    /// What a user holds.
    #[cfg(test)]
    pub(super) fn user_usage(&self, control_plane: Option<&str>, user: &str) -> Usage {
        let queue = self.control_planes.get(&control_plane.map(Arc::from));
        queue.and_then(|queue| queue.users.get(user)).map_or(Usage::default(), |user| user.usage)
    }
}

impl ControlPlaneQueue {
    /// The user with the most events above `fair`, of which at least one waits.
    fn largest_user(&self, measure: Measure, fair: usize) -> Option<Arc<str>> {
        let users = self.users.iter().filter(|(_, user)| user.usage.get(measure) > fair && !user.waiting.is_empty());
        users.max_by_key(|(_, user)| user.usage.get(measure)).map(|(name, _)| name.clone())
    }

    /// Drops the newest waiting event of a user; returns its weight.
    fn drop_newest(&mut self, name: &str) -> Option<usize> {
        let user = self.users.get_mut(name)?;
        let (_, event) = user.waiting.pop_back()?;
        let weight = event.weight();
        user.usage.subtract(weight);
        self.usage.subtract(weight);
        self.waiting -= 1;
        if user.usage.events == 0 {
            self.users.remove(name);
            self.turns.retain(|turn| **turn != *name);
        }
        Some(weight)
    }

    fn append(&mut self, user: &str, number: u64, event: Arc<AuditEvent>) {
        let weight = event.weight();
        if !self.users.contains_key(user) {
            self.users.insert(user.into(), UserQueue::default());
        }
        let Some((name, _)) = self.users.get_key_value(user) else { return };
        let name = name.clone();
        let Some(user) = self.users.get_mut(&name) else { return };
        user.waiting.push_back((number, event));
        user.usage.add(weight);
        if !std::mem::replace(&mut user.turn.is_queued, true) {
            self.turns.push_back(name);
        }
        self.waiting += 1;
        self.usage.add(weight);
    }

    /// The user whose turn it is, and the weight of the next event.
    fn next_user(&mut self) -> Option<(Arc<str>, usize)> {
        loop {
            let name = self.turns.front()?;
            let user = self.users.get_mut(name);
            match user.and_then(|user| Some((user.waiting.front()?.1.weight(), &mut user.turn))) {
                Some((weight, turn)) => {
                    if turn.has_credit() {
                        return Some((name.clone(), weight));
                    }
                    self.turns.rotate_left(1);
                }
                None => {
                    self.users.get_mut(name).into_iter().for_each(|user| user.turn = Turn::default());
                    self.turns.pop_front();
                }
            }
        }
    }

    /// Takes the next event of a user, which still counts until it is released.
    fn take(&mut self, user: &str) -> Option<(u64, Arc<AuditEvent>)> {
        let user = self.users.get_mut(user)?;
        let (number, event) = user.waiting.pop_front()?;
        self.waiting -= 1;
        let cost = i64::try_from(event.weight()).unwrap_or(i64::MAX);
        user.turn.credit -= cost;
        self.turn.credit -= cost;
        if user.waiting.is_empty() {
            user.turn = Turn::default();
            self.turns.pop_front();
        } else if user.turn.credit <= 0 {
            self.turns.rotate_left(1);
        }
        Some((number, event))
    }

    fn release(&mut self, name: &str, weight: usize) {
        self.usage.subtract(weight);
        let Some(user) = self.users.get_mut(name) else { return };
        user.usage.subtract(weight);
        if user.usage.events == 0
            && let Some(ended) = self.users.remove(name)
            && ended.turn.is_queued
        {
            self.turns.retain(|turn| **turn != *name);
        }
    }
}

impl Turn {
    /// Whether events may be taken in this turn, which begins if the last one has ended.
    fn has_credit(&mut self) -> bool {
        if self.credit <= 0 {
            self.credit += TURN_QUANTUM;
        }
        self.credit > 0
    }
}

impl Usage {
    fn get(self, measure: Measure) -> usize {
        match measure {
            Measure::Events => self.events,
            Measure::Bytes => self.bytes,
        }
    }

    fn add(&mut self, bytes: usize) {
        self.events += 1;
        self.bytes += bytes;
    }

    fn subtract(&mut self, bytes: usize) {
        self.events -= 1;
        self.bytes -= bytes;
    }
}
