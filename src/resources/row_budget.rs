//! Bound of the text in the cells of one row of a Table: an object that is printed in each of many columns would multiply.

use serde_json::Value;

/// Bytes of text in the cells of one row. A kube-apiserver has no limit.
const MAX_ROW_TEXT: usize = 16 << 10;

/// The text that the cells of a row may have yet.
#[derive(Debug)]
pub(super) struct RowBudget(usize);

impl Default for RowBudget {
    fn default() -> RowBudget {
        RowBudget(MAX_ROW_TEXT)
    }
}

impl RowBudget {
    /// Stands for what is left out.
    pub(super) const REST: &'static str = "...";

    /// Whether no more text is printed.
    pub(super) fn is_spent(&self) -> bool {
        self.0 == 0
    }

    /// The text of a cell, cut off where the budget ends.
    pub(super) fn cut(&mut self, text: &str) -> String {
        if text.len() <= self.0.max(Self::REST.len()) {
            self.0 = self.0.saturating_sub(text.len());
            return text.to_owned();
        }
        let end = text.floor_char_boundary(std::mem::take(&mut self.0));
        format!("{}{}", &text[..end], Self::REST)
    }
}

/// The cells of a row, whose texts together are bounded.
pub fn bounded_cells(cells: Vec<Value>) -> Vec<Value> {
    let mut budget = RowBudget::default();
    let bounded = cells.into_iter().map(|cell| match cell {
        Value::String(text) => budget.cut(&text).into(),
        cell => cell,
    });
    bounded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_row_text_is_cut_off_at_character_beyond_its_budget() {
        let cells = ["name", &"é".repeat(MAX_ROW_TEXT), "more text", "3m"].map(Value::from);
        let cells = bounded_cells(cells.to_vec());
        let texts: Vec<&str> = cells.iter().filter_map(Value::as_str).collect();
        assert_eq!([texts[0], texts[2], texts[3]], ["name", "...", "3m"]);
        assert_eq!(texts[1].len(), MAX_ROW_TEXT - 4 + 3);
        assert!(texts[1].ends_with("é..."));
    }
}
