//! The open connections of a listener for operators: their number is limited, and a new one always finds a place.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use tokio::task::AbortHandle;

/// What a connection is used for. When there are too many, the first kind present gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionUse {
    /// No request has arrived.
    Silent,
    /// Requests were answered.
    Answered,
    /// An event stream.
    Streaming,
}

/// The connections of one listener, on one thread.
pub struct ConnectionTable {
    limit: usize,
    next: Cell<u64>,
    connections: RefCell<BTreeMap<u64, OpenConnection>>,
}

struct OpenConnection {
    peer: IpAddr,
    usage: Rc<Cell<ConnectionUse>>,
    task: AbortHandle,
}

impl ConnectionTable {
    /// An empty table of at most `limit` connections.
    pub fn new(limit: usize) -> Rc<ConnectionTable> {
        Rc::new(ConnectionTable { limit, next: Cell::new(0), connections: RefCell::default() })
    }

    /// Serves a connection of `peer` in a task of its own. If there are too many connections, one is closed for it. Needs a
    /// `LocalSet`.
    pub fn spawn<F: Future + 'static>(
        self: &Rc<ConnectionTable>,
        peer: IpAddr,
        serve: impl FnOnce(Rc<Cell<ConnectionUse>>) -> F,
    ) {
        while self.connections.borrow().len() >= self.limit {
            self.close_one();
        }
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let usage = Rc::new(Cell::new(ConnectionUse::Silent));
        let (serving, table) = (serve(usage.clone()), self.clone());
        let task = tokio::task::spawn_local(async move {
            serving.await;
            table.connections.borrow_mut().remove(&number);
        });
        let connection = OpenConnection { peer, usage, task: task.abort_handle() };
        self.connections.borrow_mut().insert(number, connection);
    }

    /// Closes the oldest connection of the peer that has most, among those of the least use.
    fn close_one(&self) {
        let mut connections = self.connections.borrow_mut();
        let Some(least) = connections.values().map(|it| it.usage.get()).min() else { return };
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        for connection in connections.values().filter(|it| it.usage.get() == least) {
            *counts.entry(connection.peer).or_default() += 1;
        }
        let candidates = connections.iter().filter(|(_, it)| it.usage.get() == least);
        let oldest = candidates.max_by_key(|(number, it)| (counts.get(&it.peer), Reverse(**number)));
        if let Some(number) = oldest.map(|(number, _)| *number)
            && let Some(closed) = connections.remove(&number)
        {
            closed.task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connection_of_least_use_of_the_busiest_peer_is_closed() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let table = ConnectionTable::new(4);
                let open = |peer: u8, usage| {
                    table.spawn(IpAddr::from([10, 0, 0, peer]), |it| async move {
                        it.set(usage);
                        std::future::pending::<()>().await;
                    });
                };
                for (peer, usage) in [
                    (1, ConnectionUse::Answered),
                    (2, ConnectionUse::Silent),
                    (3, ConnectionUse::Silent),
                    (3, ConnectionUse::Silent),
                ] {
                    open(peer, usage);
                }
                tokio::task::yield_now().await;
                let mut left = Vec::new();
                for _ in 0..4 {
                    open(9, ConnectionUse::Streaming);
                    tokio::task::yield_now().await;
                    left.push(table.connections.borrow().keys().copied().collect::<Vec<_>>());
                }
                assert_eq!(left[0], [0, 1, 3, 4], "the older one of the peer with two");
                assert_eq!(left[1], [0, 3, 4, 5], "the older one of two peers with one each");
                assert_eq!(left[2], [0, 4, 5, 6], "the last one without a request");
                assert_eq!(left[3], [4, 5, 6, 7], "not the event streams");
            })
            .await;
    }

    #[tokio::test]
    async fn connection_that_ends_leaves_its_place() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let table = ConnectionTable::new(1);
                table.spawn(IpAddr::from([10, 0, 0, 1]), |_| std::future::ready(()));
                tokio::task::yield_now().await;
                assert!(table.connections.borrow().is_empty());
            })
            .await;
    }
}
