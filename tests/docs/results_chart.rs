//! The chart that `benches/compare` draws, from results that are written here.

use crate::chart::{Bar, Panel, render};

#[test]
fn chart_has_a_bar_for_each_result_in_proportion() {
    let mut cpu = Panel::new("CPU time of the proxy per 1,000 requests", "ms");
    cpu.groups.push(("h2-h2-1k".to_owned(), vec![Bar::new("narthex", 10.0), Bar::new("haproxy", 20.0)]));
    cpu.groups.push(("none".to_owned(), Vec::new()));
    let mut memory = Panel::new("Memory per idle watch", "kB");
    memory.groups.push(("h2 <backend>".to_owned(), vec![Bar::new("narthex, log all", 0.0)]));
    let svg = render(&[cpu, Panel::default(), memory]);
    assert_eq!(svg.matches("<rect x=").count(), 3);
    // The longest bar has the whole length, the other half of it.
    assert!(svg.contains("width=\"400.0\"") && svg.contains("width=\"200.0\""), "{svg}");
    for words in [">10.0 ms<", ">20.0 ms<", ">0.0 kB<", "smaller is better", "h2 &lt;backend&gt;"] {
        assert!(svg.contains(words), "{words}\n{svg}");
    }
    assert!(!svg.contains(">none<") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    // Each element is closed, and none is beyond the picture.
    assert_eq!(svg.matches("<text ").count(), svg.matches("</text>").count());
    let height: f64 = number(&svg, "<svg", "height");
    let lowest = svg.split("<rect").skip(2).map(|rect| number(rect, "", "y")).fold(0.0, f64::max);
    assert!(lowest > 0.0 && lowest < height, "{lowest} of {height}");
}

#[test]
fn chart_without_results_is_empty() {
    let svg = render(&[Panel::new("CPU", "ms")]);
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && !svg.contains("<text"), "{svg}");
}

/// The value of ` name="…"` behind `from`.
fn number(text: &str, from: &str, name: &str) -> f64 {
    let (_, rest) = text.split_once(from).unwrap();
    let (_, value) = rest.split_once(&format!(" {name}=\"")).unwrap();
    value.split('"').next().unwrap().parse().unwrap()
}
