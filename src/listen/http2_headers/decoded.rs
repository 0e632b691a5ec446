//! Headers of decoded blocks. Their texts are shared with the dynamic table: one byte of a block may name a large header
//! again and again, which must cost no more than that byte.

use std::cell::Cell;
use std::rc::Rc;

/// Size of a header besides its name and value (RFC 7541, 4.1).
pub(super) const HEADER_OVERHEAD: usize = 32;

/// A name or a value. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum HeaderText {
    /// From the static table.
    Static(&'static str),
    /// From a literal.
    Shared(Rc<SharedText>),
}

/// The text of a literal, also while the dynamic table has it.
#[derive(Debug)]
pub(crate) struct SharedText {
    bytes: Vec<u8>,
    /// Whether a check has accepted it.
    is_checked: Cell<bool>,
}

impl HeaderText {
    pub(super) fn new(bytes: Vec<u8>) -> HeaderText {
        HeaderText::Shared(Rc::new(SharedText { bytes, is_checked: Cell::new(false) }))
    }

    /// The bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            HeaderText::Static(text) => text.as_bytes(),
            HeaderText::Shared(text) => &text.bytes,
        }
    }

    /// Runs a check, unless it has accepted the text before or the text is from the static table.
    pub(crate) fn check_once<E>(&self, check: impl FnOnce(&[u8]) -> Result<(), E>) -> Result<(), E> {
        match self {
            HeaderText::Shared(text) if !text.is_checked.get() => {
                check(&text.bytes)?;
                text.is_checked.set(true);
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether both are one text in memory.
    pub(super) fn is_same(&self, other: &HeaderText) -> bool {
        std::ptr::eq(self.as_bytes(), other.as_bytes())
    }
}

/// A header of a block.
#[derive(Clone, Debug)]
pub(crate) struct DecodedHeader {
    pub(crate) name: HeaderText,
    pub(crate) value: HeaderText,
}

impl DecodedHeader {
    /// Size by the count of the dynamic table and of SETTINGS_MAX_HEADER_LIST_SIZE.
    pub(super) fn size(&self) -> usize {
        self.name.as_bytes().len() + self.value.as_bytes().len() + HEADER_OVERHEAD
    }
}

/// The headers of a block, in order.
#[derive(Debug, Default)]
pub(crate) struct DecodedHeaders {
    headers: Vec<DecodedHeader>,
    /// Size of all headers (RFC 9113, 10.5.1), also of those beyond the limit.
    size: usize,
    max_size: usize,
}

impl DecodedHeaders {
    /// At most `max_size` bytes of headers are kept, by the count of SETTINGS_MAX_HEADER_LIST_SIZE.
    pub(super) fn with_max_size(max_size: usize) -> DecodedHeaders {
        DecodedHeaders { max_size, ..DecodedHeaders::default() }
    }

    /// The headers that are kept.
    pub(crate) fn as_slice(&self) -> &[DecodedHeader] {
        &self.headers
    }

    /// Names and values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.headers.iter().map(|header| (header.name.as_bytes(), header.value.as_bytes()))
    }

    /// Number of headers that are kept.
    pub(crate) fn len(&self) -> usize {
        self.headers.len()
    }

    /// Whether the headers reach the maximum size, so that not all are kept.
    pub(crate) fn is_too_large(&self) -> bool {
        self.size >= self.max_size
    }

    /// Size of all headers.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn push(&mut self, header: DecodedHeader) {
        self.size = self.size.saturating_add(header.size());
        if !self.is_too_large() {
            self.headers.push(header);
        }
    }
}
