//! The sections that findings and warnings refer to.

use narthex::process::HelpTopic;

use crate::page::Page;

#[test]
fn help_links_lead_to_sections() {
    for topic in HelpTopic::ALL {
        let (path, fragment) = topic.link().split_once('#').expect("a page and a section");
        assert!(Page::read(path).anchors().iter().any(|anchor| anchor == fragment), "{topic:?}: {}", topic.link());
    }
}
