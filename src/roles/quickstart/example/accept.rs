//! What a client can read: its `Accept` header, in the order of its wishes.

use http::HeaderMap;
use http::header::ACCEPT;

/// One media type of an `Accept` header.
#[derive(Debug, PartialEq)]
pub(super) struct Wish {
    media: String,
    parameters: Vec<(String, String)>,
}

impl Wish {
    /// All wishes: highest `q` first, then as the client ordered them. Without a header, anything.
    pub(super) fn all(headers: &HeaderMap) -> Vec<Wish> {
        let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
        let mut wishes: Vec<(u32, Wish)> = lines.flat_map(|line| line.split(',')).filter_map(Wish::parse).collect();
        wishes.sort_by_key(|(quality, _)| std::cmp::Reverse(*quality));
        if wishes.is_empty() {
            return vec![Wish { media: "*/*".into(), parameters: Vec::new() }];
        }
        wishes.into_iter().filter(|(quality, _)| *quality > 0).map(|(_, wish)| wish).collect()
    }

    /// Whether JSON is what is wished for.
    pub(super) fn is_json(&self) -> bool {
        matches!(self.media.as_str(), "application/json" | "application/*" | "*/*")
    }

    /// A parameter, or nothing.
    pub(super) fn parameter(&self, name: &str) -> &str {
        self.parameters.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    fn parse(text: &str) -> Option<(u32, Wish)> {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next()?.to_ascii_lowercase();
        let mut quality = 1000;
        let mut parameters = Vec::new();
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
            if key == "q" {
                // Thousandths, so that wishes can be ordered without floating point.
                let (whole, rest) = value.split_once('.').unwrap_or((value, ""));
                let rest = format!("{rest:0<3}");
                quality = whole.parse::<u32>().ok()?.min(1) * 1000 + rest.get(..3)?.parse::<u32>().ok()?;
            } else {
                parameters.push((key, value.to_owned()));
            }
        }
        (!media.is_empty()).then_some((quality, Wish { media, parameters }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_come_by_quality_then_order() {
        let mut headers = HeaderMap::new();
        headers.append(ACCEPT, "text/plain;q=0.5, application/json;as=Table;v=v1;g=meta.k8s.io".parse().unwrap());
        headers.append(ACCEPT, "application/yaml;q=0, application/*".parse().unwrap());
        let wishes = Wish::all(&headers);
        let media: Vec<_> = wishes.iter().map(|wish| wish.media.as_str()).collect();
        assert_eq!(media, ["application/json", "application/*", "text/plain"]);
        assert_eq!((wishes[0].parameter("as"), wishes[0].parameter("none")), ("Table", ""));
        assert!(wishes[1].is_json() && !wishes[2].is_json());
        assert!(Wish::all(&HeaderMap::new())[0].is_json());
    }
}
