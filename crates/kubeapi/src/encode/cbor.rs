//! CBOR as by `k8s.io/apimachinery/pkg/runtime/serializer/cbor`: the self-described tag, texts as byte strings, keys
//! sorted by length and then by bytes.

use super::Status;
use crate::StatusCause;

/// Tag 55799, which marks the data as CBOR (RFC 8949 §3.4.6).
const SELF_DESCRIBED: [u8; 3] = [0xd9, 0xd9, 0xf7];

const UNSIGNED: u8 = 0x00;
const BYTES: u8 = 0x40;
const ARRAY: u8 = 0x80;
const MAP: u8 = 0xa0;

pub(super) fn encode(status: &Status) -> Vec<u8> {
    let mut map = CborMap::default();
    map.number("code", u32::from(status.body_code()));
    map.text("kind", "Status");
    map.text("reason", status.reason_text());
    map.text("status", status.outcome());
    if let Some(details) = &status.details {
        let mut inner = CborMap::default();
        inner.text("uid", &details.uid);
        inner.text("kind", &details.kind);
        inner.text("name", &details.name);
        inner.text("group", &details.group);
        if !details.causes.is_empty() {
            let mut causes = Vec::new();
            write_head(&mut causes, ARRAY, details.causes.len() as u64);
            details.causes.iter().for_each(|cause| causes.extend(cause_map(cause).finish()));
            inner.raw("causes", &causes);
        }
        inner.number("retryAfterSeconds", details.retry_after_seconds);
        map.raw("details", &inner.finish());
    }
    map.text("message", &status.message);
    let mut metadata = CborMap::default();
    metadata.text("continue", status.continue_token.as_deref().unwrap_or_default());
    map.raw("metadata", &metadata.finish());
    map.text("apiVersion", "v1");
    let mut out = SELF_DESCRIBED.to_vec();
    out.extend(map.finish());
    out
}

fn cause_map(cause: &StatusCause) -> CborMap {
    let mut map = CborMap::default();
    map.text("field", &cause.field);
    map.text("reason", &cause.reason);
    map.text("message", &cause.message);
    map
}

/// A map under construction. Empty values are omitted.
#[derive(Default)]
struct CborMap {
    entries: u64,
    bytes: Vec<u8>,
}

impl CborMap {
    fn raw(&mut self, key: &str, value: &[u8]) {
        self.entries += 1;
        write_bytes(&mut self.bytes, key);
        self.bytes.extend_from_slice(value);
    }

    fn text(&mut self, key: &str, value: &str) {
        if !value.is_empty() {
            let mut encoded = Vec::with_capacity(value.len() + 5);
            write_bytes(&mut encoded, value);
            self.raw(key, &encoded);
        }
    }

    fn number(&mut self, key: &str, value: u32) {
        if value != 0 {
            let mut encoded = Vec::with_capacity(5);
            write_head(&mut encoded, UNSIGNED, u64::from(value));
            self.raw(key, &encoded);
        }
    }

    fn finish(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes.len() + 1);
        write_head(&mut out, MAP, self.entries);
        out.extend(self.bytes);
        out
    }
}

fn write_bytes(out: &mut Vec<u8>, text: &str) {
    write_head(out, BYTES, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Writes the major type with its argument, in the shortest form.
fn write_head(out: &mut Vec<u8>, major: u8, argument: u64) {
    match argument {
        0..=23 => out.push(major | argument as u8),
        24..=0xff => out.extend([major | 24, argument as u8]),
        0x100..=0xffff => {
            out.push(major | 25);
            out.extend((argument as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(major | 26);
            out.extend((argument as u32).to_be_bytes());
        }
        _ => {
            out.push(major | 27);
            out.extend(argument.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::examples;
    use super::*;

    #[test]
    fn status_cbor_matches_upstream_bytes() {
        let expected: [&[u8]; 5] = [
            b"\xd9\xd9\xf7\xa7Dcode\x19\x01\x91DkindFStatusFreasonLUnauthorizedFstatusGFailureGmessageLUnauthorizedHmetadata\xa0JapiVersionBv1",
            b"\xd9\xd9\xf7\xa8Dcode\x19\x01\x93DkindFStatusFreasonIForbiddenFstatusGFailureGdetails\xa3DkindHflundersDnameAxEgroupRwardle.example.comGmessageXMflunders.wardle.example.com \"x\" is forbidden: User &lt;\"\xc3\xa9\xe2\x80\xa8\x01\x08\" cannot < & 'Hmetadata\xa0JapiVersionBv1",
            b"\xd9\xd9\xf7\xa8Dcode\x19\x01\x93DkindFStatusFreasonIForbiddenFstatusGFailureGdetails\xa0GmessageX(forbidden: User \"u\" cannot get path \"/x\"Hmetadata\xa0JapiVersionBv1",
            b"\xd9\xd9\xf7\xa8Dcode\x19\x01\xf7DkindFStatusFreasonRServiceUnavailableFstatusGFailureGdetails\xa5CuidCu-1DkindAkEgroupAgFcauses\x82\xa2FreasonPMissingEndpointsGmessageLno endpoints\xa2EfieldFspec.xGmessageAmQretryAfterSeconds\x19\x01,GmessageJgone: awayHmetadata\xa0JapiVersionBv1",
            b"\xd9\xd9\xf7\xa7Dcode\x19\x01\x90DkindFStatusFreasonJBadRequestFstatusGFailureGmessageKit's\nlines Hmetadata\xa0JapiVersionBv1",
        ];
        for (status, expected) in examples().iter().zip(expected) {
            assert_eq!(encode(status), expected);
        }
    }
}
