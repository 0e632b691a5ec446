//! `ConversionReview` of `apiextensions.k8s.io/v1` and `v1beta1`: the request, and the checks of the response
//! (`webhook_converter.go` in `k8s.io/apiextensions-apiserver/pkg/apiserver/conversion`).

use kubeapi::GoQuoted;
use kubeapi::json::write_json;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::metadata::restore_metadata;
use crate::observe::metrics::ConversionFailure;
use crate::resources::MAX_BODY_BYTES;

const GROUP: &str = "apiextensions.k8s.io";

/// Largest converted object in bytes, that of a request body.
const MAX_OBJECT_BYTES: usize = MAX_BODY_BYTES;

/// A version of `ConversionReview`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConversionReviewVersion {
    V1,
    V1Beta1,
}

/// What one call of a webhook converts.
#[derive(Clone, Debug)]
pub(super) struct ConversionReview {
    pub(super) version: ConversionReviewVersion,
    pub(super) uid: String,
    /// `group/version` of the result.
    pub(super) desired: String,
    /// Version and kind of the object or list, in errors: `group/version, Kind=kind`.
    pub(super) input: String,
    /// Whether the objects are items of a list, in errors.
    pub(super) is_list: bool,
}

/// A conversion that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FailedConversion {
    pub(super) failure: ConversionFailure,
    /// Upstream's text.
    pub(super) text: String,
}

/// The fields of a response that are read.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReviewDocument {
    api_version: Option<String>,
    kind: Option<String>,
    response: Option<ReviewResponse>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReviewResponse {
    uid: Option<String>,
    converted_objects: Option<Vec<Box<RawValue>>>,
    result: Option<ReviewResult>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewResult {
    status: Option<String>,
    message: Option<String>,
}

/// What remains of an object while it is converted: its type and metadata.
#[derive(Clone, Debug)]
pub(super) struct ConversionOriginal(Value);

impl ConversionOriginal {
    pub(super) fn new(mut object: Value) -> ConversionOriginal {
        if let Value::Object(object) = &mut object {
            object.retain(|field, _| matches!(&**field, "apiVersion" | "kind" | "metadata"));
        }
        ConversionOriginal(object)
    }
}

impl ConversionReviewVersion {
    /// The first version of the webhook's that is known here.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn negotiate(versions: &[String]) -> Result<ConversionReviewVersion, String> {
        let known = versions.iter().find_map(|version| match &**version {
            "v1" => Some(ConversionReviewVersion::V1),
            "v1beta1" => Some(ConversionReviewVersion::V1Beta1),
            _ => None,
        });
        known.ok_or_else(|| "no supported conversion review versions".to_owned())
    }

    fn as_str(self) -> &'static str {
        match self {
            ConversionReviewVersion::V1 => "v1",
            ConversionReviewVersion::V1Beta1 => "v1beta1",
        }
    }
}

impl ConversionReview {
    /// The body of the request. `response` is empty, as upstream sends it: there are webhooks that fill it in.
    pub(super) fn request(&self, objects: &[Value]) -> Vec<u8> {
        let body = json!({
            "apiVersion": format!("{GROUP}/{}", self.version.as_str()),
            "kind": "ConversionReview",
            "request": {"uid": self.uid, "desiredAPIVersion": self.desired, "objects": objects},
            "response": {"uid": "", "convertedObjects": null, "result": {"metadata": {}}},
        });
        body.to_string().into_bytes()
    }

    /// A failed call.
    pub(super) fn failed(&self, failure: ConversionFailure, why: &str) -> FailedConversion {
        FailedConversion { failure, text: format!("conversion webhook for {} failed: {why}", self.input) }
    }

    /// The converted objects of a response, checked, in the order of `originals`, with their metadata. Each goes to `keep`
    /// before the next is read: as values, all of them may take much memory.
    ///
    /// # Errors
    /// The response is not that of a conversion of `originals`.
    pub(super) fn converted_objects<T>(
        &self,
        originals: &[ConversionOriginal],
        body: &[u8],
        keep: impl Fn(usize, Value) -> T,
    ) -> Result<Vec<T>, FailedConversion> {
        let malformed = |error: serde_json::Error| {
            let why = format!("couldn't get version/kind; json parse error: {error}");
            self.failed(ConversionFailure::Call, &why)
        };
        let document = serde_json::from_slice(body).map_err(malformed)?;
        let converted =
            self.response(document).map_err(|why| self.failed(ConversionFailure::MalformedResponse, &why))?;
        if converted.len() != originals.len() {
            let (returned, expected) = (converted.len(), originals.len());
            let input = &self.input;
            let text = format!("conversion webhook for {input} returned {returned} objects, expected {expected}");
            return Err(FailedConversion { failure: ConversionFailure::PartialResponse, text });
        }
        let pairs = originals.iter().zip(converted).enumerate();
        pairs
            .map(|(index, (original, converted))| {
                let invalid = |text| FailedConversion { failure: ConversionFailure::InvalidConvertedObject, text };
                if converted.get().len() > MAX_OBJECT_BYTES {
                    let bytes = converted.get().len();
                    let why =
                        format!("converted object at index {index} has {bytes} bytes, limit is {MAX_OBJECT_BYTES}");
                    return Err(self.failed(ConversionFailure::InvalidConvertedObject, &why));
                }
                let mut converted = serde_json::from_str(converted.get()).map_err(malformed)?;
                self.check_object(index, &original.0, &mut converted).map_err(invalid)?;
                Ok(keep(index, converted))
            })
            .collect()
    }

    /// The objects of a response, unchecked.
    fn response(&self, document: ReviewDocument) -> Result<Vec<Box<RawValue>>, String> {
        let ReviewDocument { api_version, kind, response } = document;
        let is_checked = self.version == ConversionReviewVersion::V1;
        if is_checked {
            let (expected, kind) = (format!("{GROUP}/v1"), kind.unwrap_or_default());
            let found = api_version.unwrap_or_default();
            if found != expected || kind != "ConversionReview" {
                let found = if found.contains('/') { found } else { format!("/{found}") };
                return Err(format!(
                    "expected webhook response of {expected}, Kind=ConversionReview, got {found}, Kind={kind}"
                ));
            }
        }
        let response = response.ok_or("no response provided")?;
        let uid = response.uid.unwrap_or_default();
        if is_checked && uid != self.uid {
            return Err(format!("expected response.uid={}, got {}", GoQuoted(&self.uid), GoQuoted(&uid)));
        }
        let result = response.result.unwrap_or_default();
        let status = result.status.unwrap_or_default();
        if status != "Success" {
            let message = result.message.filter(|message| !message.is_empty());
            return Err(message.unwrap_or_else(|| format!("response.result.status was '{status}', not 'Success'")));
        }
        Ok(response.converted_objects.unwrap_or_default())
    }

    /// Checks a converted object, and gives it the metadata of the original.
    fn check_object(&self, index: usize, original: &Value, converted: &mut Value) -> Result<(), String> {
        let (input, is_list) = (&self.input, self.is_list);
        let invalid = |why: &str, names_index: bool| match (is_list, names_index) {
            (true, _) => {
                format!("conversion webhook for {input} returned invalid converted object at index {index}: {why}")
            }
            (false, true) => format!("conversion webhook for {input} returned invalid object at index 0: {why}"),
            (false, false) => format!("conversion webhook for {input} returned invalid object: {why}"),
        };
        // `UnmarshalJSON` fails without a kind, and upstream does not say of which object.
        if text(converted, "/kind").is_empty() {
            let why = match converted {
                Value::Null => "unexpected end of JSON input".to_owned(),
                converted => format!("Object 'Kind' is missing in '{}'", write_json(converted)),
            };
            return Err(if is_list { invalid(&why, true) } else { why });
        }
        let (expected, received) = (&self.desired, text(converted, "/apiVersion"));
        if received != expected {
            return Err(invalid(&format!("invalid groupVersion (expected {expected}, received {received})"), true));
        }
        let (expected, received) = (text(original, "/kind"), text(converted, "/kind"));
        if received != expected {
            return Err(invalid(&format!("invalid kind (expected {expected}, received {received})"), true));
        }
        for (what, pointer) in
            [("name", "/metadata/name"), ("namespace", "/metadata/namespace"), ("UID", "/metadata/uid")]
        {
            let (expected, received) = (text(original, pointer), text(converted, pointer));
            if received != expected {
                return Err(invalid(&format!("must have the same {what}: {expected} != {received}"), false));
            }
        }
        restore_metadata(original, converted).map_err(|why| match is_list {
            true => {
                format!("conversion webhook for {input} returned invalid metadata in object at index {index}: {why}")
            }
            false => format!("conversion webhook for {input} returned invalid metadata: {why}"),
        })
    }
}

/// The text at a JSON pointer; empty if there is none.
fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(version: ConversionReviewVersion, is_list: bool) -> ConversionReview {
        let input = if is_list { "g/v2, Kind=FooList" } else { "g/v1, Kind=Foo" }.to_owned();
        ConversionReview { version, uid: "u".to_owned(), desired: "g/v2".to_owned(), input, is_list }
    }

    fn object(version: &str, name: &str) -> Value {
        json!({"apiVersion": format!("g/{version}"), "kind": "Foo", "metadata": {"name": name, "uid": name}})
    }

    fn response(objects: &[Value]) -> Value {
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": {
            "uid": "u", "result": {"status": "Success"}, "convertedObjects": objects}})
    }

    fn converted(review: &ConversionReview, originals: &[Value], body: &[u8]) -> Result<Vec<Value>, FailedConversion> {
        let originals: Vec<_> = originals.iter().cloned().map(ConversionOriginal::new).collect();
        review.converted_objects(&originals, body, |_, value| value)
    }

    fn error(review: &ConversionReview, originals: &[Value], response: &Value) -> (ConversionFailure, String) {
        let failed = converted(review, originals, response.to_string().as_bytes()).unwrap_err();
        (failed.failure, failed.text)
    }

    #[test]
    fn conversion_review_version_is_first_that_both_know() {
        let negotiate = |versions: &[&str]| {
            ConversionReviewVersion::negotiate(&versions.iter().map(|&version| version.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(negotiate(&["v2", "v1beta1", "v1"]), Ok(ConversionReviewVersion::V1Beta1));
        assert_eq!(negotiate(&["v1", "v1beta1"]), Ok(ConversionReviewVersion::V1));
        assert_eq!(negotiate(&["v2"]), Err("no supported conversion review versions".to_owned()));
    }

    #[test]
    fn conversion_review_request_has_objects_and_version() {
        let body = review(ConversionReviewVersion::V1Beta1, false).request(&[object("v1", "a")]);
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["apiVersion"], "apiextensions.k8s.io/v1beta1");
        assert_eq!(body["request"], json!({"uid": "u", "desiredAPIVersion": "g/v2", "objects": [object("v1", "a")]}));
    }

    #[test]
    fn conversion_review_response_restores_metadata() {
        let mut answered = object("v2", "a");
        answered["metadata"]["generation"] = json!(7);
        answered["spec"] = json!({"x": 1});
        let body = response(&[answered]).to_string();
        let v1 = review(ConversionReviewVersion::V1, false);
        let objects = converted(&v1, &[object("v1", "a")], body.as_bytes());
        let mut expected = object("v2", "a");
        expected["spec"] = json!({"x": 1});
        assert_eq!(objects, Ok(vec![expected]));
    }

    #[test]
    fn conversion_review_response_malformed_has_upstream_text() {
        let originals = [object("v1", "a")];
        let v1 = review(ConversionReviewVersion::V1, false);
        let mut other_uid = response(&[object("v2", "a")]);
        other_uid["response"]["uid"] = json!("x");
        let mut failed = other_uid.clone();
        failed["response"]["uid"] = json!("u");
        failed["response"]["result"] = json!({"status": "Failure", "message": "no way"});
        let mut silent = failed.clone();
        silent["response"]["result"] = json!({"status": "Failure"});
        let mut beta = other_uid.clone();
        beta["apiVersion"] = json!("apiextensions.k8s.io/v1beta1");
        for (response, why) in [
            (json!({}), "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got /, Kind="),
            (
                beta.clone(),
                "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got \
                 apiextensions.k8s.io/v1beta1, Kind=ConversionReview",
            ),
            (json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview"}), "no response provided"),
            (other_uid.clone(), r#"expected response.uid="u", got "x""#),
            (failed, "no way"),
            (silent, "response.result.status was 'Failure', not 'Success'"),
        ] {
            let expected = format!("conversion webhook for g/v1, Kind=Foo failed: {why}");
            assert_eq!(error(&v1, &originals, &response), (ConversionFailure::MalformedResponse, expected));
        }
        let text = converted(&v1, &originals, b"hello").unwrap_err();
        assert_eq!(text.failure, ConversionFailure::Call);
        assert!(text.text.contains("failed: couldn't get version/kind; json parse error"), "{}", text.text);
        // Version and uid are checked for v1 only.
        let lax = review(ConversionReviewVersion::V1Beta1, false);
        assert!(converted(&lax, &originals, beta.to_string().as_bytes()).is_ok());
    }

    #[test]
    fn conversion_review_response_with_too_large_object_is_refused() {
        let v1 = review(ConversionReviewVersion::V1, true);
        let mut large = object("v2", "a");
        large["spec"] = json!("x".repeat(MAX_OBJECT_BYTES));
        let (failure, text) = error(&v1, &[object("v1", "a")], &response(&[large]));
        assert_eq!(failure, ConversionFailure::InvalidConvertedObject);
        assert!(text.ends_with(&format!("bytes, limit is {MAX_OBJECT_BYTES}")), "{text}");
    }

    #[test]
    fn conversion_review_response_of_other_objects_has_upstream_text() {
        let originals = [object("v1", "a")];
        let v1 = review(ConversionReviewVersion::V1, false);
        let (failure, text) = error(&v1, &originals, &response(&[]));
        assert_eq!(failure, ConversionFailure::PartialResponse);
        assert_eq!(text, "conversion webhook for g/v1, Kind=Foo returned 0 objects, expected 1");
        let mut renamed_kind = object("v2", "a");
        renamed_kind["kind"] = json!("Bar");
        let mut moved = object("v2", "a");
        moved["metadata"]["namespace"] = json!("n");
        let mut reborn = object("v2", "a");
        reborn["metadata"]["uid"] = json!("x");
        let mut labeled = object("v2", "a");
        labeled["metadata"]["labels"] = json!([]);
        let bare = json!({"apiVersion": "g/v2"});
        for (converted, single, item) in [
            (
                object("v1", "a"),
                " object at index 0: invalid groupVersion (expected g/v2, received g/v1)",
                " converted object at index 0: invalid groupVersion (expected g/v2, received g/v1)",
            ),
            (
                renamed_kind,
                " object at index 0: invalid kind (expected Foo, received Bar)",
                " converted object at index 0: invalid kind (expected Foo, received Bar)",
            ),
            (
                object("v2", "b"),
                " object: must have the same name: a != b",
                " converted object at index 0: must have the same name: a != b",
            ),
            (
                moved,
                " object: must have the same namespace:  != n",
                " converted object at index 0: must have the same namespace:  != n",
            ),
            (
                reborn,
                " object: must have the same UID: a != x",
                " converted object at index 0: must have the same UID: a != x",
            ),
            (
                labeled,
                " metadata: invalid metadata.labels of type []interface {} in converted object",
                " metadata in object at index 0: invalid metadata.labels of type []interface {} in converted object",
            ),
        ] {
            for (is_list, why) in [(false, single), (true, item)] {
                let review = review(ConversionReviewVersion::V1, is_list);
                let (failure, text) = error(&review, &originals, &response(std::slice::from_ref(&converted)));
                assert_eq!(failure, ConversionFailure::InvalidConvertedObject);
                assert_eq!(text, format!("conversion webhook for {} returned invalid{why}", review.input));
            }
        }
        let (_, text) = error(&v1, &originals, &response(&[bare]));
        assert_eq!(text, r#"Object 'Kind' is missing in '{"apiVersion":"g/v2"}'"#);
        let (_, text) = error(&v1, &originals, &response(&[Value::Null]));
        assert_eq!(text, "unexpected end of JSON input");
    }
}
