//! Reads YAML from the network in time and memory linear in its length.
//!
//! Aliases may not expand a document to more than about twice its length, and merge keys (`<<`) are refused. An API
//! server accepts both (`sigs.k8s.io/yaml`). Files of the operator are read elsewhere and may use both.

use serde_json::Value;
use serde_saphyr::options::MergeKeyPolicy;

/// Maximum nesting of a document.
const MAX_DEPTH: usize = 64;
/// Maximum nesting of aliases.
const MAX_ALIAS_DEPTH: usize = 8;

/// Error of reading YAML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum YamlError {
    /// Reading it may cost more than linear time or memory: merge keys, or aliases that expand too far.
    TooExpensive(String),
    /// The text is not YAML, or cannot be expressed in JSON.
    Invalid(String),
}

impl std::fmt::Display for YamlError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (YamlError::TooExpensive(why) | YamlError::Invalid(why)) = self;
        f.write_str(why)
    }
}

/// Reads one YAML document as JSON. Costs at most about one microsecond per byte.
///
/// # Errors
/// [`YamlError::TooExpensive`] for merge keys and for aliases that expand too far, [`YamlError::Invalid`] otherwise.
pub fn read_bounded_yaml(text: &str) -> Result<Value, YamlError> {
    // Without aliases, a document has at most about two events per byte (`[,]` has an empty node for each comma).
    let limit = text.len().saturating_mul(2).saturating_add(64);
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: limit,
            max_nodes: limit,
            max_total_scalar_bytes: limit,
            max_recorded_anchor_events: limit,
            max_recorded_anchor_bytes: limit,
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_documents: 1,
        },
        merge_keys: MergeKeyPolicy::Error,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: limit,
            max_replay_stack_depth: MAX_ALIAS_DEPTH,
        },
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        if is_too_expensive(&error) {
            YamlError::TooExpensive(error.to_string())
        } else {
            YamlError::Invalid(error.to_string())
        }
    })
}

fn is_too_expensive(error: &serde_saphyr::Error) -> bool {
    use serde_saphyr::Error;
    match error {
        Error::AliasError { error, .. } => is_too_expensive(error),
        Error::Budget { .. }
        | Error::MergeKeyNotAllowed { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `levels` anchors, each of which names the one before it `width` times, in the form `item` gives it.
    fn nested(levels: usize, item: impl Fn(&str) -> String) -> String {
        let mut text = "a0: &a0 {k: v}\n".to_owned();
        for level in 1..levels {
            let names = vec![format!("*a{}", level - 1); 6].join(",");
            text += &format!("a{level}: &a{level} {}\n", item(&names));
        }
        text
    }

    #[test]
    fn bounded_yaml_reads_plain_documents_and_a_few_aliases() {
        assert_eq!(read_bounded_yaml("a:\n- 1\n- x\n"), Ok(json!({"a": [1, "x"]})));
        assert_eq!(read_bounded_yaml("a: &x {b: c}\nd: *x\n"), Ok(json!({"a": {"b": "c"}, "d": {"b": "c"}})));
        let deep = format!("{}{}", "[".repeat(60), "]".repeat(60));
        assert!(read_bounded_yaml(&deep).is_ok());
        for text in ["a: [", "a: b: c", "a: 1\na: 2\n"] {
            assert!(matches!(read_bounded_yaml(text), Err(YamlError::Invalid(_))), "{text}");
        }
    }

    #[test]
    fn bounded_yaml_refuses_what_expands() {
        let merged = nested(14, |names| format!("{{<<: [{names}]}}"));
        let listed = nested(14, |names| format!("[{names}]"));
        let long = format!("- &a {}\n{}", "x".repeat(1000), "- *a\n".repeat(1000));
        for text in
            [merged.as_str(), &listed, &long, "a: &a {b: c}\nd: {<<: *a}\n", "a: &a {b: c}\nd: {!!merge <<: *a}\n"]
        {
            assert!(matches!(read_bounded_yaml(text), Err(YamlError::TooExpensive(_))), "{text}");
        }
        assert!(read_bounded_yaml(&"[".repeat(10_000)).is_err());
        assert!(read_bounded_yaml(&"- ".repeat(10_000)).is_err());
    }

    #[test]
    fn bounded_yaml_never_grows_beyond_a_multiple_of_its_length() {
        fn nodes(value: &Value) -> usize {
            1 + match value {
                Value::Array(items) => items.iter().map(nodes).sum(),
                Value::Object(entries) => entries.values().map(nodes).sum(),
                _ => 0,
            }
        }
        bolero::check!().with_iterations(2000).with_max_len(60).for_each(|bytes: &[u8]| {
            const WORDS: &[&str] =
                &["- ", "a: ", "&a ", "*a ", "&b ", "*b ", "[", "]", "{", "}", ",", "<<: ", "\n", "  ", "x"];
            let text: String = bytes.iter().map(|byte| WORDS[usize::from(*byte) % WORDS.len()]).collect();
            if let Ok(value) = read_bounded_yaml(&text) {
                assert!(nodes(&value) <= 2 * text.len() + 64, "{text}");
            }
        });
    }
}
