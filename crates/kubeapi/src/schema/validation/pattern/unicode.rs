//! Categories, scripts and cases of code points, in the version of Unicode that Go has: the `regex` crate may have
//! another. A kube-apiserver must not accept a text here and refuse it there.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use super::code_points::{CodePoints, CodePointsBuilder};

static TABLES: LazyLock<UnicodeTables> = LazyLock::new(|| UnicodeTables::read(include_str!("unicode_tables.txt")));

/// A set by the name that stands between the braces of `\p{Greek}`.
pub(super) fn named_set(name: &str, folds_case: bool) -> Option<CodePoints> {
    let name = canonical_name(name);
    let set = TABLES.sets.get(&name)?;
    // Go has no table of the letters that are equal to cased ones: U+0345, which is a mark, is not.
    let is_cased = matches!(name.as_str(), "Lc" | "Casedletter");
    Some(if folds_case && !is_cased { fold_case(set) } else { set.clone() })
}

/// The set with all code points that differ in case only from one of the set.
pub(super) fn fold_case(set: &CodePoints) -> CodePoints {
    let mut folded = CodePointsBuilder::default();
    folded.add_set(set);
    for (first, last) in set.ranges() {
        for (code_point, next) in TABLES.next_case.range(*first..=*last) {
            let mut other = *next;
            while other != *code_point {
                if !(*first..=*last).contains(&other) {
                    folded.add(other, other);
                }
                other = TABLES.next_case.get(&other).copied().unwrap_or(*code_point);
            }
        }
    }
    folded.build()
}

/// A first letter in upper case and others in lower case, without what separates words.
fn canonical_name(name: &str) -> String {
    let mut canonical: String = name.chars().filter(|next| !matches!(next, '_' | '-' | ' ')).collect();
    canonical.make_ascii_lowercase();
    if let Some(first) = canonical.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    canonical
}

#[derive(Default)]
struct UnicodeTables {
    /// By canonical name.
    sets: HashMap<String, CodePoints>,
    /// The next code point that differs in case only; the last one has the first one.
    next_case: BTreeMap<u32, u32>,
}

impl UnicodeTables {
    fn read(text: &str) -> UnicodeTables {
        let mut tables = UnicodeTables::default();
        let mut categories = Vec::new();
        let mut aliases = Vec::new();
        for line in text.lines() {
            let mut words = line.split(' ');
            match (words.next(), words.next()) {
                (Some("category"), Some(name)) => {
                    categories.push((name, words.flat_map(read_ranges).collect::<CodePoints>()))
                }
                (Some("script"), Some(name)) => {
                    tables.sets.insert(name.to_owned(), words.flat_map(read_ranges).collect());
                }
                (Some("alias"), Some(name)) => aliases.push((name, words.next().unwrap_or_default())),
                (Some("orbit"), Some(first)) => {
                    tables.add_orbit([first].into_iter().chain(words).filter_map(read_code))
                }
                (Some("pairs"), Some(first)) => tables.add_pairs([first].into_iter().chain(words)),
                _ => {}
            }
        }
        tables.add_categories(categories);
        for (alias, name) in aliases {
            if let Some(set) = tables.sets.get(name).cloned() {
                tables.sets.insert(alias.to_owned(), set);
            }
        }
        tables
    }

    /// Adds general categories, and those that are unions of others.
    fn add_categories(&mut self, mut categories: Vec<(&str, CodePoints)>) {
        let union = |categories: &[(&str, CodePoints)], is_member: &dyn Fn(&str) -> bool| {
            let members = categories.iter().filter(|(name, _)| is_member(name));
            members.flat_map(|(_, set)| set.ranges().iter().copied()).collect::<CodePoints>()
        };
        let assigned = union(&categories, &|_| true);
        categories.push(("Cn", assigned.complement()));
        for major in ["C", "L", "M", "N", "P", "S", "Z"] {
            self.sets.insert(major.to_owned(), union(&categories, &|name| name.starts_with(major)));
        }
        self.sets.insert("Lc".to_owned(), union(&categories, &|name| matches!(name, "Ll" | "Lt" | "Lu")));
        self.sets.insert("Any".to_owned(), CodePoints::all());
        self.sets.insert("Ascii".to_owned(), [(0, 0x7F)].into_iter().collect());
        self.sets.insert("Assigned".to_owned(), assigned);
        self.sets.extend(categories.into_iter().map(|(name, set)| (name.to_owned(), set)));
    }

    fn add_orbit(&mut self, orbit: impl Iterator<Item = u32>) {
        let orbit: Vec<u32> = orbit.collect();
        let next = orbit.iter().cycle().skip(1);
        self.next_case.extend(orbit.iter().copied().zip(next.copied()));
    }

    fn add_pairs<'a>(&mut self, pairs: impl Iterator<Item = &'a str>) {
        for (range, distance) in pairs.filter_map(|pair| pair.split_once('+')) {
            let distance = read_code(distance).unwrap_or_default();
            for code_point in read_ranges(range).flat_map(|(first, last)| first..=last) {
                self.add_orbit([code_point, code_point + distance].into_iter());
            }
        }
    }
}

/// Reads `41`, `41-5A`, or `100-12E/2`.
fn read_ranges(text: &str) -> impl Iterator<Item = (u32, u32)> {
    let (range, step) = text.split_once('/').map_or((text, 1), |(range, _)| (range, 2));
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last) = (read_code(first).unwrap_or_default(), read_code(last).unwrap_or_default());
    let single = (step == 1).then_some((first, last));
    let separate = (step != 1).then(|| (first..=last).step_by(step).map(|one| (one, one)));
    single.into_iter().chain(separate.into_iter().flatten())
}

fn read_code(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(code_point: char) -> Vec<char> {
        let set = fold_case(&[(code_point.into(), code_point.into())].into_iter().collect());
        set.ranges().iter().flat_map(|(first, last)| *first..=*last).filter_map(char::from_u32).collect()
    }

    #[test]
    fn unicode_tables_are_whole() {
        let count =
            |name: &str| named_set(name, false).map(|set| set.ranges().iter().map(|(a, b)| b - a + 1).sum::<u32>());
        // Numbers of Unicode 15.0.0, as Go has them.
        for (name, expected) in [
            ("Lu", 1831),
            ("Letter", 136_104),
            ("Cn", 825_345),
            ("gree_k", 518),
            ("Any", 0x11_0000),
            ("Assigned", 0x11_0000 - 825_345),
        ] {
            assert_eq!(count(name), Some(expected), "{name}");
        }
        assert_eq!(TABLES.next_case.len(), 2878);
        assert_eq!((count("Old_Italic"), count("Alphabetic"), count("")), (None, None, None));
        let is_in = |name: &str, code_point: u32| {
            let set = named_set(name, true).unwrap();
            set.ranges().iter().any(|(first, last)| (*first..=*last).contains(&code_point))
        };
        assert!(is_in("Ll", 0x345) && !is_in("LC", 0x345) && is_in("Greek", 0xB5) && is_in("ASCII", 0x212A));
    }

    #[test]
    fn fold_case_has_all_forms() {
        for (code_point, expected) in [
            ('k', vec!['K', 'k', '\u{212A}']),
            ('ß', vec!['ß', 'ẞ']),
            ('1', vec!['1']),
            ('Ā', vec!['Ā', 'ā']),
            // Its upper case is younger than the tables.
            ('\u{19B}', vec!['\u{19B}']),
        ] {
            assert_eq!(folded(code_point), expected, "{code_point}");
        }
    }
}
