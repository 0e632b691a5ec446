//! A bar chart of results as a small SVG: CPU time per request, and memory per idle watch. Smaller is better.

use std::fmt::Write as _;

/// Bars of one unit below one another.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Panel {
    /// What is measured.
    pub(crate) title: String,
    /// Behind each value, such as `kB`.
    pub(crate) unit: &'static str,
    /// Groups of bars, each with its label.
    pub(crate) groups: Vec<(String, Vec<Bar>)>,
}

/// One result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bar {
    /// The program.
    pub(crate) name: String,
    pub(crate) value: f64,
}

impl Panel {
    pub(crate) fn new(title: &str, unit: &'static str) -> Panel {
        Panel { title: title.to_owned(), unit, groups: Vec::new() }
    }
}

impl Bar {
    pub(crate) fn new(name: &str, value: f64) -> Bar {
        Bar { name: name.to_owned(), value }
    }
}

/// Width of the picture, and where the bars begin and how long the longest is.
const WIDTH: f64 = 760.0;
const BAR_LEFT: f64 = 270.0;
const BAR_LENGTH: f64 = 400.0;
const BAR_HEIGHT: f64 = 16.0;
const LINE: f64 = 22.0;
const MARGIN: f64 = 20.0;

/// A color for Narthex, and grays for the others: both are readable on white and on black.
const OWN_COLOR: &str = "#2f7fc1";
const OTHER_COLORS: [&str; 3] = ["#8c8c8c", "#a8a8a8", "#747474"];

/// The chart as SVG. Panels without a bar are left out.
pub(crate) fn render(panels: &[Panel]) -> String {
    let mut body = String::new();
    let mut top = MARGIN;
    for panel in panels.iter().filter(|panel| panel.groups.iter().any(|(_, bars)| !bars.is_empty())) {
        top = render_panel(&mut body, panel, top) + LINE;
    }
    let height = top;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" \
         font-family=\"sans-serif\" font-size=\"13\" role=\"img\">\n\
         <title>Results of the benchmark; smaller is better</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// Returns where the next panel may begin.
fn render_panel(body: &mut String, panel: &Panel, mut top: f64) -> f64 {
    let bars = || panel.groups.iter().flat_map(|(_, bars)| bars);
    let most = bars().map(|bar| bar.value).fold(0.0, f64::max);
    text(body, MARGIN, top + BAR_HEIGHT, "font-weight=\"bold\"", &format!("{} (smaller is better)", panel.title));
    top += LINE * 1.2;
    for (label, bars) in panel.groups.iter().filter(|(_, bars)| !bars.is_empty()) {
        text(body, MARGIN, top + BAR_HEIGHT - 3.0, "", label);
        let mut others = OTHER_COLORS.iter().cycle();
        for bar in bars {
            let color =
                if bar.name.starts_with("narthex") { OWN_COLOR } else { others.next().copied().unwrap_or(OWN_COLOR) };
            let length = if most > 0.0 { (bar.value.max(0.0) / most * BAR_LENGTH).max(1.0) } else { 1.0 };
            text(body, BAR_LEFT - 8.0, top + BAR_HEIGHT - 3.0, "text-anchor=\"end\"", &bar.name);
            let _ = writeln!(
                body,
                "<rect x=\"{BAR_LEFT}\" y=\"{top:.1}\" width=\"{length:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{color}\"/>"
            );
            let value = format!("{:.1} {}", bar.value, panel.unit);
            text(body, BAR_LEFT + length + 6.0, top + BAR_HEIGHT - 3.0, "", &value);
            top += LINE;
        }
        top += LINE * 0.4;
    }
    top
}

fn text(body: &mut String, x: f64, y: f64, attributes: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let space = if attributes.is_empty() { "" } else { " " };
    let _ = writeln!(body, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"#1a1a1a\"{space}{attributes}>{words}</text>");
}
