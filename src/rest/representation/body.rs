//! Bodies in frames, which are made as the client takes them, with gzip if they are large
//! (`k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/writers.go`, `deferredResponseWriter`).

use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream;
use http_body::Frame;
use http_body_util::StreamBody;
use kubeapi::Status;
use kubeapi::json::JsonIndenter;

use crate::compute::{ComputeContext, run_sized};
use crate::message::{Body, BodyError};

/// Size of a frame in bytes, unless one object is larger.
pub(super) const FRAME_BYTES: usize = 64 << 10;

/// Bytes of JSON that become one frame when they are indented.
const INDENTED_BYTES: usize = 16 << 10;

/// A body up to this size in bytes is sent whole and never with gzip (`defaultGzipThresholdBytes`).
const GZIP_THRESHOLD: usize = 128 << 10;

/// `defaultGzipContentEncodingLevel`.
const GZIP_LEVEL: u32 = 1;

/// Makes a body frame by frame.
pub(super) trait FrameSource: Send {
    /// The next frame, which may be empty; none at the end.
    fn next_frame(&mut self) -> Option<Bytes>;

    /// Size in bytes of what the next frame cannot do without. Above that of a frame it is made on a compute thread.
    fn next_size(&self) -> usize;
}

/// A body in frames.
pub(super) struct FramedBody {
    source: Box<dyn FrameSource>,
    is_begun: bool,
}

/// A document in memory.
struct DocumentFrames(Bytes);

impl FrameSource for DocumentFrames {
    fn next_frame(&mut self) -> Option<Bytes> {
        (!self.0.is_empty()).then(|| self.0.split_to(self.0.len().min(FRAME_BYTES)))
    }

    fn next_size(&self) -> usize {
        0
    }
}

/// Frames of JSON, indented. A byte of deeply nested JSON becomes up to 256.
pub(super) struct IndentedFrames {
    source: Box<dyn FrameSource>,
    /// What is not indented yet of the last frame.
    rest: Bytes,
    indenter: JsonIndenter,
}

impl IndentedFrames {
    pub(super) fn new(source: Box<dyn FrameSource>) -> IndentedFrames {
        IndentedFrames { source, rest: Bytes::new(), indenter: JsonIndenter::default() }
    }
}

impl FrameSource for IndentedFrames {
    fn next_frame(&mut self) -> Option<Bytes> {
        if self.rest.is_empty() {
            self.rest = self.source.next_frame()?;
        }
        let piece = self.rest.split_to(self.rest.len().min(INDENTED_BYTES));
        let mut out = Vec::with_capacity(2 * piece.len());
        self.indenter.indent(&piece, &mut out);
        Some(out.into())
    }

    fn next_size(&self) -> usize {
        if self.rest.is_empty() { self.source.next_size() } else { 0 }
    }
}

/// Frames with gzip.
struct GzipFrames {
    first: std::vec::IntoIter<Bytes>,
    source: Box<dyn FrameSource>,
    /// None once the end is written.
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl FrameSource for GzipFrames {
    fn next_frame(&mut self) -> Option<Bytes> {
        let encoder = self.encoder.as_mut()?;
        let Some(frame) = self.first.next().or_else(|| self.source.next_frame()) else {
            // Writing to memory cannot fail.
            return self.encoder.take()?.finish().ok().map(Bytes::from);
        };
        encoder.write_all(&frame).ok()?;
        Some(std::mem::take(encoder.get_mut()).into())
    }

    fn next_size(&self) -> usize {
        self.first.as_slice().first().map_or_else(|| self.source.next_size(), Bytes::len)
    }
}

/// Frames that were made, and then the others.
struct ChainedFrames {
    first: std::vec::IntoIter<Bytes>,
    source: Box<dyn FrameSource>,
}

impl FrameSource for ChainedFrames {
    fn next_frame(&mut self) -> Option<Bytes> {
        self.first.next().or_else(|| self.source.next_frame())
    }

    fn next_size(&self) -> usize {
        if self.first.as_slice().is_empty() { self.source.next_size() } else { 0 }
    }
}

impl FramedBody {
    pub(super) fn new(source: Box<dyn FrameSource>) -> FramedBody {
        FramedBody { source, is_begun: false }
    }

    /// The body of a document in memory, and whether it has gzip.
    ///
    /// # Errors
    /// 500 if it cannot be compressed.
    pub(super) async fn from_document(document: Bytes, accepts_gzip: bool) -> Result<(Body, bool), Status> {
        if document.len() <= GZIP_THRESHOLD || !accepts_gzip {
            return Ok((Body::from(document), false));
        }
        FramedBody::new(Box::new(DocumentFrames(document))).into_body(true).await
    }

    /// The body of a JSON document in memory, indented.
    pub(super) fn indented(document: Bytes) -> FramedBody {
        FramedBody::new(Box::new(IndentedFrames::new(Box::new(DocumentFrames(document)))))
    }

    /// The body of a response, and whether it has gzip. A small one is whole, of a large one the first frames are made.
    ///
    /// # Errors
    /// 500 if a frame cannot be made.
    pub(super) async fn into_body(mut self, accepts_gzip: bool) -> Result<(Body, bool), Status> {
        let mut first = Vec::new();
        let mut size = 0;
        while size <= GZIP_THRESHOLD {
            let Some(frame) = self.next().await? else {
                let body = if first.len() == 1 { first.swap_remove(0) } else { Bytes::from(first.concat()) };
                return Ok((Body::from(body), false));
            };
            size += frame.len();
            first.push(frame);
        }
        let (first, source) = (first.into_iter(), self.source);
        let rest: Box<dyn FrameSource> = if accepts_gzip {
            let encoder = Some(GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL)));
            Box::new(GzipFrames { first, source, encoder })
        } else {
            Box::new(ChainedFrames { first, source })
        };
        Ok((FramedBody::new(rest).into_stream(), accepts_gzip))
    }

    /// The next frame. Between two frames other tasks of the thread have a chance to run.
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        if std::mem::replace(&mut self.is_begun, true) {
            tokio::task::yield_now().await;
        }
        let size = self.source.next_size();
        if size <= FRAME_BYTES {
            return Ok(self.source.next_frame());
        }
        let mut source = std::mem::replace(&mut self.source, Box::new(DocumentFrames(Bytes::new())));
        let (frame, source) = run_sized(size, move || (source.next_frame(), source)).await?;
        self.source = source;
        Ok(frame)
    }

    fn into_stream(self) -> Body {
        let context = ComputeContext::current().for_body();
        let frames = stream::unfold((self, context), |(mut body, context)| async move {
            loop {
                match context.scope(body.next()).await {
                    Ok(Some(frame)) if frame.is_empty() => {}
                    Ok(Some(frame)) => return Some((Ok(Frame::data(frame)), (body, context))),
                    Ok(None) => return None,
                    Err(status) => return Some((Err(BodyError::from(status.message)), (body, context))),
                }
            }
        });
        Body::stream(StreamBody::new(Box::pin(frames)))
    }
}
