//! The configuration file: the flags of a command under their camelCase names, in YAML.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::flag::{Flag, FlagGroup, FlagKind, flags};
use super::value::{self, FlagValue, ValueSource};
use crate::process::{Problem, Problems};

/// The supported `apiVersion`.
pub const API_VERSION: &str = "narthex.dev/v1alpha1";

/// Parses `text`, the content of the file at `path`. Returns the valid flags and adds errors to `problems`.
pub(super) fn read(
    path: &str,
    text: &str,
    kind: &str,
    groups: &[&'static FlagGroup],
    problems: &mut Problems,
) -> Vec<(&'static Flag, FlagValue)> {
    let document = match serde_saphyr::from_str::<ConfigDocument>(text) {
        Ok(document) => document,
        Err(error) => {
            let location = match error.location() {
                Some(location) => format!("{path} line {}", location.line()),
                None => path.to_owned(),
            };
            problems
                .0
                .push(Problem::new(location, format_args!("not a YAML mapping of flags: {}", first_line(&error))));
            return Vec::new();
        }
    };

    let mut found = Vec::new();
    let mut header = [("apiVersion", API_VERSION, false), ("kind", kind, false)];
    for Entry { name, line, value } in document.0 {
        let location = format!("{path} line {line}");
        if let Some((_, expected, seen)) = header.iter_mut().find(|(field, ..)| *field == name) {
            *seen = true;
            match value {
                YamlValue::One(value) if value == *expected => {}
                value => problems.0.push(Problem::at_field(
                    &location,
                    name,
                    format_args!("{value} is not known here; use {expected}"),
                )),
            }
            continue;
        }
        let Some(flag) = flags(groups).find(|flag| flag.field_name() == name && flag.name != "config") else {
            problems.0.push(Problem::at_field(&location, &name, unknown_field_message(&name, groups)));
            continue;
        };
        match flag_values(flag, value) {
            Ok(None) => {}
            Ok(Some(values)) => {
                found.push((flag, FlagValue { values, source: ValueSource::File { location, field: name } }));
            }
            Err(message) => problems.0.push(Problem::at_field(&location, &name, message)),
        }
    }
    for (field, expected, seen) in header {
        if !seen {
            problems.0.push(Problem::at_field(path, field, format_args!("missing; use {expected}")));
        }
    }
    found
}

/// The values of `flag` in a file; none for null.
pub(super) fn flag_values(flag: &Flag, value: YamlValue) -> Result<Option<Vec<String>>, String> {
    match (flag.kind, value) {
        (_, YamlValue::Null) => Ok(None),
        (FlagKind::List(_), YamlValue::One(value)) => Ok(Some(value::parse_list(&value))),
        (_, YamlValue::One(value)) => Ok(Some(vec![value])),
        (FlagKind::List(_) | FlagKind::Repeated(_), YamlValue::Many(values)) => Ok(Some(values)),
        (_, value) => Err(format!("{value} does not fit; {} is needed", expected_value(flag.kind))),
    }
}

fn unknown_field_message(name: &str, groups: &[&'static FlagGroup]) -> String {
    match likest_field(name, flags(groups)) {
        Some(field) => format!("unknown field; did you mean {field}?"),
        None => "unknown field; the fields are the flags of the command line in camelCase".to_owned(),
    }
}

/// The message for an unknown field of an entry that may have `fields`.
pub(super) fn unknown_entry_field(name: &str, fields: impl Iterator<Item = &'static Flag>) -> String {
    match likest_field(name, fields) {
        Some(field) => format!("unknown field; did you mean {field}?"),
        None => "unknown field of a control plane".to_owned(),
    }
}

/// The field with the name most like `name`, if one is like it.
fn likest_field(name: &str, fields: impl Iterator<Item = &'static Flag>) -> Option<String> {
    fields
        .filter(|flag| flag.name != "config")
        .map(|flag| (strsim::jaro_winkler(&name.to_ascii_lowercase(), &flag.field_name().to_ascii_lowercase()), flag))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, flag)| flag.field_name())
}

fn expected_value(kind: FlagKind) -> &'static str {
    match kind {
        FlagKind::List(_) | FlagKind::Repeated(_) => "a list of texts",
        FlagKind::Switch => "true or false",
        FlagKind::Count | FlagKind::Fraction => "a number",
        FlagKind::Duration => "a duration such as 90s",
        FlagKind::Text(_) | FlagKind::File | FlagKind::Directory | FlagKind::Choice(_) => "one text",
    }
}

/// The message alone: serde-saphyr adds a snippet below it, and the line is reported separately.
pub(super) fn first_line(error: &serde_saphyr::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// The fields of the file in their order. serde-saphyr refuses duplicate fields.
pub(super) struct ConfigDocument(pub(super) Vec<Entry>);

pub(super) struct Entry {
    pub(super) name: String,
    pub(super) line: u64,
    pub(super) value: YamlValue,
}

/// A value as text of any YAML scalar type: `6443`, `true` and `1m` are parsed as on the command line.
pub(super) enum YamlValue {
    Null,
    One(String),
    Many(Vec<String>),
    Map,
}

impl fmt::Display for YamlValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            YamlValue::Null => f.write_str("nothing"),
            YamlValue::One(value) => write!(f, "{value:?}"),
            YamlValue::Many(_) => f.write_str("a list"),
            YamlValue::Map => f.write_str("a mapping"),
        }
    }
}

impl<'de> Deserialize<'de> for ConfigDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ConfigDocument, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = ConfigDocument;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ConfigDocument, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<Spanned<String>>()? {
                    let line = name.referenced.line();
                    entries.push(Entry { name: name.value, line, value: map.next_value()? });
                }
                Ok(ConfigDocument(entries))
            }
        }
        deserializer.deserialize_map(FieldsVisitor)
    }
}

impl<'de> Deserialize<'de> for YamlValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<YamlValue, D::Error> {
        struct ValueVisitor;
        impl<'de> Visitor<'de> for ValueVisitor {
            type Value = YamlValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<YamlValue, E> {
                Ok(YamlValue::Null)
            }

            fn visit_none<E>(self) -> Result<YamlValue, E> {
                Ok(YamlValue::Null)
            }

            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<YamlValue, D::Error> {
                deserializer.deserialize_any(self)
            }

            fn visit_bool<E>(self, value: bool) -> Result<YamlValue, E> {
                Ok(YamlValue::One(value.to_string()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<YamlValue, E> {
                Ok(YamlValue::One(value.to_string()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<YamlValue, E> {
                Ok(YamlValue::One(value.to_string()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<YamlValue, E> {
                Ok(YamlValue::One(value.to_string()))
            }

            fn visit_str<E>(self, value: &str) -> Result<YamlValue, E> {
                Ok(YamlValue::One(value.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<YamlValue, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = list.next_element::<YamlValue>()? {
                    match value {
                        YamlValue::One(value) => values.push(value),
                        YamlValue::Null => values.push(String::new()),
                        YamlValue::Many(_) | YamlValue::Map => {
                            return Err(serde::de::Error::custom("a list of texts holds a list or a mapping"));
                        }
                    }
                }
                Ok(YamlValue::Many(values))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<YamlValue, A::Error> {
                while map.next_entry::<serde::de::IgnoredAny, serde::de::IgnoredAny>()?.is_some() {}
                Ok(YamlValue::Map)
            }
        }
        deserializer.deserialize_any(ValueVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::gateway::flags::GATEWAY;

    fn read_gateway(text: &str) -> (Vec<(&'static str, Vec<String>)>, String) {
        let mut problems = Problems::default();
        let found = read("n.yaml", text, "GatewayConfiguration", GATEWAY, &mut problems);
        (found.into_iter().map(|(flag, given)| (flag.name, given.values)).collect(), problems.to_string())
    }

    const HEAD: &str = "apiVersion: narthex.dev/v1alpha1\nkind: GatewayConfiguration\n";

    #[test]
    fn config_file_reads_every_kind_of_value() {
        let (found, problems) = read_gateway(&format!(
            "{HEAD}securePort: 7443\nanonymousAuth: true\nidleTimeout: 2m\ngoawayChance: 0.01\n\
             requestheaderAllowedNames: [front, back]\nauthorizationMode: AlwaysAllow\nclientCaFile:\n\
             tlsSniCertKey: ['a.crt,a.key:x.example']\n"
        ));
        assert_eq!(problems, "");
        let text = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            found,
            [
                ("secure-port", text(&["7443"])),
                ("anonymous-auth", text(&["true"])),
                ("idle-timeout", text(&["2m"])),
                ("goaway-chance", text(&["0.01"])),
                ("requestheader-allowed-names", text(&["front", "back"])),
                ("authorization-mode", text(&["AlwaysAllow"])),
                ("tls-sni-cert-key", text(&["a.crt,a.key:x.example"])),
            ]
        );
    }

    #[test]
    fn config_file_errors_have_line_and_field() {
        let cases = [
            ("securePrt: 1\n", "n.yaml line 3: securePrt: unknown field; did you mean securePort?"),
            ("clientCAFile: x\n", "n.yaml line 3: clientCAFile: unknown field; did you mean clientCaFile?"),
            (
                "zzz: 1\n",
                "n.yaml line 3: zzz: unknown field; the fields are the flags of the command line in camelCase",
            ),
            ("config: x\n", "n.yaml line 3: config: unknown field; did you mean kubeconfig?"),
            ("securePort: [1]\n", "n.yaml line 3: securePort: a list does not fit; a number is needed"),
            (
                "anonymousAuth: {a: 1}\n",
                "n.yaml line 3: anonymousAuth: a mapping does not fit; true or false is needed",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(read_gateway(&format!("{HEAD}{text}")).1, expected, "{text}");
        }
    }

    #[test]
    fn config_file_reports_all_errors() {
        let (found, problems) = read_gateway("kind: SidecarConfiguration\n\nsecurePort: 1\nbindAdress: 1.2.3.4\n");
        assert_eq!(found.len(), 1);
        assert_eq!(
            problems,
            "n.yaml line 1: kind: \"SidecarConfiguration\" is not known here; use GatewayConfiguration\n\
             n.yaml line 4: bindAdress: unknown field; did you mean bindAddress?\n\
             n.yaml: apiVersion: missing; use narthex.dev/v1alpha1"
        );
    }

    #[test]
    fn config_file_not_a_mapping_refused_with_line() {
        for text in ["- a\n", "\n\nsecurePort: 1\nsecurePort: 2\n", "a: [\n", "hello", "a: [[1]]\n"] {
            let (found, problems) = read_gateway(text);
            assert!(found.is_empty(), "{text}");
            assert!(problems.starts_with("n.yaml"), "{text}: {problems}");
            assert!(!problems.contains('\n') || problems.contains("missing"), "{text}: {problems}");
        }
    }

    #[test]
    fn config_file_parse_never_panics() {
        bolero::check!().with_type::<String>().with_iterations(2000).for_each(|text| {
            let (_, problems) = read_gateway(text);
            // A document without our header is refused.
            assert!(!problems.is_empty());
            read_gateway(&format!("{HEAD}{text}"));
        });
    }
}
