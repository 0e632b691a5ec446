//! An address that answers no connection. The unit tests and the suites share this file.

use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};

/// The queue of its listener is full, so that the system drops what asks for a connection.
pub(crate) struct Blackhole {
    /// The address, of 127.0.0.1.
    pub(crate) address: SocketAddr,
    listener: Socket,
    _fillers: Vec<Socket>,
}

impl Blackhole {
    /// Binds the address and fills the queue.
    pub(crate) fn new() -> Blackhole {
        let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let listener = socket();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let fillers = (0..4).map(|_| {
            let filler = socket();
            filler.set_nonblocking(true).unwrap();
            let _ = filler.connect(&address);
            filler
        });
        let fillers = fillers.collect();
        Blackhole { address: address.as_socket().unwrap(), listener, _fillers: fillers }
    }

    /// Accepts connections from now on, also those that wait, and keeps them open.
    #[allow(dead_code, reason = "not each suite has a target that answers late")]
    pub(crate) fn open(self) {
        std::thread::spawn(move || {
            let mut accepted = Vec::new();
            while let Ok((connection, _)) = self.listener.accept() {
                accepted.push(connection);
            }
        });
    }
}
