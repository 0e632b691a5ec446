//! Transfers of random kinds and sizes through a tunnel, to a target that knows what it must receive.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, sleep, timeout};

use crate::environment::{ClientStream, Konnectivity};

const LIMIT: Duration = Duration::from_secs(60);
/// How long a connection may take to reach the target after its client has sent everything. It never does when an agent
/// was killed meanwhile.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(10);
const HEADER: usize = 40;
const MAX_BYTES: u64 = 4 << 20;
/// The content of a transfer begins anywhere in the first part.
const MAX_OFFSET: usize = 1 << 16;

/// What a transfer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TransferKind {
    /// The client uploads and closes at once.
    Upload,
    /// The target sends and closes at once.
    Download,
    /// Both send; each reads to the end of what it expects.
    Both,
    /// The client leaves in the middle of its upload.
    UploadAbandoned,
    /// The client leaves in the middle of a download.
    DownloadAbandoned,
    /// The target leaves in the middle of an upload.
    UploadRefused,
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferOutcome {
    /// All bytes arrived, or one side left as it should.
    Complete,
    /// Bytes are missing, and the connection ended in order.
    Truncated,
    /// Bytes are missing, and the connection failed.
    Failed,
    /// Other bytes arrived than were sent.
    Corrupt,
}

/// One transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    id: u64,
    pub(super) kind: TransferKind,
    upload: u64,
    download: u64,
    offset: u64,
    /// After how many bytes one side leaves.
    leave: u64,
}

impl Transfer {
    pub(super) fn random(random: &mut fastrand::Rng) -> Transfer {
        let kinds = [
            TransferKind::Upload,
            TransferKind::Upload,
            TransferKind::Upload,
            TransferKind::Download,
            TransferKind::Download,
            TransferKind::Download,
            TransferKind::Both,
            TransferKind::UploadAbandoned,
            TransferKind::DownloadAbandoned,
            TransferKind::UploadRefused,
        ];
        let kind = kinds[random.usize(..kinds.len())];
        // As many small as large ones.
        let mut size = || (random.f64() * (MAX_BYTES as f64).ln()).exp() as u64;
        let (upload, download) = (size(), size());
        Transfer {
            id: random.u64(..),
            kind,
            upload: if matches!(kind, TransferKind::Download | TransferKind::DownloadAbandoned) { 0 } else { upload },
            download: match kind {
                TransferKind::Download | TransferKind::Both | TransferKind::DownloadAbandoned => download,
                _ => 0,
            },
            offset: random.u64(..MAX_OFFSET as u64),
            leave: random.u64(..=upload.min(download)),
        }
    }

    fn header(&self) -> [u8; HEADER] {
        let leave = if self.kind == TransferKind::UploadRefused { self.leave } else { u64::MAX };
        let mut header = [0; HEADER];
        for (at, value) in [self.id, self.upload, self.download, self.offset, leave].into_iter().enumerate() {
            header[at * 8..][..8].copy_from_slice(&value.to_be_bytes());
        }
        header
    }

    /// Whether `bytes` begin as the content does.
    fn is_prefix(&self, bytes: &[u8]) -> bool {
        content(self.offset, bytes.len() as u64) == bytes
    }

    /// Runs it over a new tunnel. The error is that of the dial.
    pub(super) async fn run(
        &self,
        konnectivity: &Konnectivity,
        target: &TransferTarget,
    ) -> Result<TransferOutcome, String> {
        let dialed = timeout(LIMIT, konnectivity.connect(target.port)).await;
        let mut stream = dialed.map_err(|_| "no response to the dial".to_owned())??;
        let ended = timeout(LIMIT, self.transfer(&mut stream)).await;
        drop(stream);
        let Ok((outcome, is_sent)) = ended else { return Ok(TransferOutcome::Failed) };
        if outcome != TransferOutcome::Complete {
            return Ok(outcome);
        }
        Ok(match self.kind {
            TransferKind::Upload if !is_sent => TransferOutcome::Failed,
            TransferKind::Upload => self.judge(&target.received(self.id).await, true),
            TransferKind::UploadAbandoned => match self.judge(&target.received(self.id).await, true) {
                TransferOutcome::Corrupt => TransferOutcome::Corrupt,
                _ => TransferOutcome::Complete,
            },
            _ => TransferOutcome::Complete,
        })
    }

    fn judge(&self, received: &[u8], is_orderly: bool) -> TransferOutcome {
        match received.len() as u64 {
            _ if !self.is_prefix(received) => TransferOutcome::Corrupt,
            length if length == self.upload => TransferOutcome::Complete,
            _ if is_orderly => TransferOutcome::Truncated,
            _ => TransferOutcome::Failed,
        }
    }

    /// The client's part. Also returns whether everything was sent.
    async fn transfer(&self, stream: &mut Box<dyn ClientStream>) -> (TransferOutcome, bool) {
        if stream.write_all(&self.header()).await.is_err() {
            return (TransferOutcome::Failed, false);
        }
        let (mut reader, mut writer) = tokio::io::split(stream);
        match self.kind {
            TransferKind::Upload => (TransferOutcome::Complete, self.send(&mut writer, self.upload, true).await),
            TransferKind::UploadAbandoned => {
                (TransferOutcome::Complete, self.send(&mut writer, self.leave, false).await)
            }
            TransferKind::UploadRefused => {
                // It ends when the target has left, or when all was sent before that.
                let mut rest = Vec::new();
                let (sent, _) = tokio::join!(self.send(&mut writer, self.upload, false), reader.read_to_end(&mut rest));
                (TransferOutcome::Complete, sent)
            }
            TransferKind::DownloadAbandoned => {
                let _ = writer.flush().await;
                (self.receive(&mut reader, self.leave).await, true)
            }
            TransferKind::Download | TransferKind::Both => {
                let (sent, outcome) =
                    tokio::join!(self.send(&mut writer, self.upload, false), self.receive(&mut reader, self.download));
                (outcome, sent)
            }
        }
    }

    async fn send(&self, writer: &mut (impl AsyncWrite + Unpin), length: u64, and_close: bool) -> bool {
        let mut rest = content(self.offset, length);
        let mut random = fastrand::Rng::with_seed(self.id);
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(rest.len().min(random.usize(1..=128 << 10)));
            if writer.write_all(piece).await.is_err() {
                return false;
            }
            if random.u8(..32) == 0 {
                sleep(Duration::from_millis(1)).await;
            }
            rest = more;
        }
        writer.flush().await.is_ok() && (!and_close || writer.shutdown().await.is_ok())
    }

    /// Reads `length` bytes, and then the end if that is all.
    async fn receive(&self, reader: &mut (impl AsyncRead + Unpin), length: u64) -> TransferOutcome {
        let mut all = Vec::new();
        let mut random = fastrand::Rng::with_seed(!self.id);
        let result = async {
            let is_all = length == self.download;
            while is_all || (all.len() as u64) < length {
                let limit = random.u64(1..=64 << 10);
                if (&mut *reader).take(limit).read_buf(&mut all).await? == 0 {
                    break;
                }
                if random.u8(..32) == 0 {
                    sleep(Duration::from_millis(1)).await;
                }
            }
            std::io::Result::Ok(())
        };
        let result = result.await;
        match all.len() as u64 {
            received if received > self.download || !self.is_prefix(&all) => TransferOutcome::Corrupt,
            received if received >= length => TransferOutcome::Complete,
            _ if result.is_ok() => TransferOutcome::Truncated,
            _ => TransferOutcome::Failed,
        }
    }
}

/// Random bytes, the same ones in each transfer.
fn content(offset: u64, length: u64) -> &'static [u8] {
    static CONTENT: OnceLock<Vec<u8>> = OnceLock::new();
    let all = CONTENT.get_or_init(|| {
        let mut all = vec![0; MAX_OFFSET + MAX_BYTES as usize + 1];
        fastrand::Rng::with_seed(7).fill(&mut all);
        all
    });
    let from = offset as usize;
    &all[from..(from + length as usize).min(all.len())]
}

/// What each connection brought, by the id of its transfer; none while it is open.
type ReceivedUploads = Arc<Mutex<HashMap<u64, Option<Vec<u8>>>>>;

/// The other end of transfers.
pub(super) struct TransferTarget {
    port: u16,
    received: ReceivedUploads,
}

impl TransferTarget {
    pub(super) fn start() -> TransferTarget {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let received = ReceivedUploads::default();
        let by_threads = received.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let received = by_threads.clone();
                let serve = move || serve(stream, &received);
                std::thread::Builder::new().stack_size(256 << 10).spawn(serve).unwrap();
            }
        });
        TransferTarget { port, received }
    }

    /// What the connection of a transfer brought; waits for its end.
    async fn received(&self, id: u64) -> Vec<u8> {
        let began = Instant::now();
        loop {
            let limit = match self.received.lock().unwrap().get_mut(&id) {
                Some(Some(received)) => return std::mem::take(received),
                Some(None) => LIMIT,
                None => ARRIVAL_LIMIT,
            };
            if began.elapsed() > limit {
                return Vec::new();
            }
            sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Errors of the connection are the client's to judge.
fn serve(mut stream: TcpStream, received: &ReceivedUploads) {
    let mut header = [0; HEADER];
    if stream.read_exact(&mut header).is_err() {
        return;
    }
    let value = |at: usize| u64::from_be_bytes(header[at * 8..][..8].try_into().unwrap());
    let (id, upload, download, offset, leave) = (value(0), value(1), value(2), value(3), value(4));
    if leave != u64::MAX {
        let _ = (&mut stream).take(leave).read_to_end(&mut Vec::new());
        return;
    }
    if download == 0 {
        received.lock().unwrap().insert(id, None);
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        received.lock().unwrap().insert(id, Some(all));
        return;
    }
    let mut from = stream.try_clone().unwrap();
    let reading = std::thread::spawn(move || (&mut from).take(upload).read_to_end(&mut Vec::new()));
    let _ = stream.write_all(content(offset, download));
    let _ = reading.join();
    let _ = stream.shutdown(Shutdown::Write);
    // A close with unread data would be a reset.
    let _ = stream.read(&mut [0; 1]);
}
