//! Protobuf as by Kubernetes (`k8s.io/apimachinery/pkg/runtime/serializer/protobuf`): four magic bytes, a
//! `runtime.Unknown` with the type, and the `Status` in it. Every field that is no pointer in Kubernetes is written,
//! even if it is empty.

use super::Status;
use crate::protobuf::{wrap_unknown, write_bytes, write_number, write_text};

pub(super) fn encode(status: &Status) -> Vec<u8> {
    wrap_unknown("v1", "Status", &message(status))
}

fn message(status: &Status) -> Vec<u8> {
    let mut list_meta = Vec::new();
    write_text(&mut list_meta, 1, "");
    write_text(&mut list_meta, 2, "");
    write_text(&mut list_meta, 3, status.continue_token.as_deref().unwrap_or_default());

    let mut out = Vec::with_capacity(status.message.len() + 64);
    write_bytes(&mut out, 1, &list_meta);
    write_text(&mut out, 2, status.outcome());
    write_text(&mut out, 3, &status.message);
    write_text(&mut out, 4, status.reason_text());
    if let Some(details) = &status.details {
        let mut inner = Vec::new();
        write_text(&mut inner, 1, &details.name);
        write_text(&mut inner, 2, &details.group);
        write_text(&mut inner, 3, &details.kind);
        for cause in &details.causes {
            let mut entry = Vec::new();
            write_text(&mut entry, 1, &cause.reason);
            write_text(&mut entry, 2, &cause.message);
            write_text(&mut entry, 3, &cause.field);
            write_bytes(&mut inner, 4, &entry);
        }
        write_number(&mut inner, 5, u64::from(details.retry_after_seconds));
        write_text(&mut inner, 6, &details.uid);
        write_bytes(&mut out, 5, &inner);
    }
    write_number(&mut out, 6, u64::from(status.body_code()));
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::examples;
    use super::*;

    #[test]
    fn status_protobuf_matches_upstream_bytes() {
        let expected: [&[u8]; 5] = [
            b"k8s\0\n\x0c\n\x02v1\x12\x06Status\x120\nMETA\x12\x07Failure\x1a\x0cUnauthorized\"\x0cUnauthorized0\x91\x03\x1a\0\"\0",
            b"k8s\0\n\x0c\n\x02v1\x12\x06Status\x12\x95\x01\nMETA\x12\x07Failure\x1aMflunders.wardle.example.com \"x\" is forbidden: User &lt;\"\xc3\xa9\xe2\x80\xa8\x01\x08\" cannot < & '\"\tForbidden*%\n\x01x\x12\x12wardle.example.com\x1a\x08flunders(\x002\x000\x93\x03\x1a\0\"\0",
            b"k8s\0\n\x0c\n\x02v1\x12\x06Status\x12U\nMETA\x12\x07Failure\x1a(forbidden: User \"u\" cannot get path \"/x\"\"\tForbidden*\n\n\0\x12\0\x1a\0(\x002\x000\x93\x03\x1a\0\"\0",
            b"k8s\0\n\x0c\n\x02v1\x12\x06Status\x12y\nMETA\x12\x07Failure\x1a\ngone: away\"\x12ServiceUnavailable*C\n\0\x12\x01g\x1a\x01k\"\"\n\x10MissingEndpoints\x12\x0cno endpoints\x1a\0\"\r\n\0\x12\x01m\x1a\x06spec.x(\xac\x022\x03u-10\xf7\x03\x1a\0\"\0",
            b"k8s\0\n\x0c\n\x02v1\x12\x06Status\x12-\nMETA\x12\x07Failure\x1a\x0bit's\nlines \"\nBadRequest0\x90\x03\x1a\0\"\0",
        ];
        for (status, expected) in examples().iter().zip(expected) {
            // META stands for the empty list metadata, six bytes, to keep the golden bytes readable.
            let at = expected.windows(4).position(|bytes| bytes == b"META").unwrap();
            let expected = [&expected[..at], b"\x06\n\0\x12\0\x1a\0", &expected[at + 4..]].concat();
            assert_eq!(encode(status), expected);
        }
    }
}
