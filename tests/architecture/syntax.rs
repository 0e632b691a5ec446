//! Reads one source file with syn: the paths it uses, what it imports and declares, and what is compiled for tests only.

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

/// What the rules need of a file. Lines count from 1.
#[derive(Debug, Default)]
pub(crate) struct Syntax {
    /// Paths with more than one segment, in code and in the arguments of macros; imports are not among them.
    pub(crate) paths: Vec<UsedPath>,
    pub(crate) imports: Vec<Import>,
    /// Items of all kinds, by the modules of the file that they are in.
    pub(crate) items: Vec<Item>,
    pub(crate) functions: Vec<Function>,
    /// Lines with the word `unsafe`.
    pub(crate) unsafe_lines: Vec<usize>,
    /// The last line that is compiled without tests.
    pub(crate) production_lines: usize,
}

/// A path in the code: `a::b::C`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UsedPath {
    pub(crate) line: usize,
    /// The modules within the file, from the outermost.
    pub(crate) inner: Vec<String>,
    pub(crate) segments: Vec<String>,
    pub(crate) is_test: bool,
}

/// A name that a module imports or exports again.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    /// Its name here, which `as` may have changed; `*` for all names of a module.
    pub(crate) name: String,
    /// Where it comes from.
    pub(crate) path: UsedPath,
}

/// An item with a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) kind: ItemKind,
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) inner: Vec<String>,
    pub(crate) is_test: bool,
}

/// Kind of an item, as far as rules differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemKind {
    /// `mod a { … }`.
    InlineModule,
    /// `mod a;`.
    ModuleFile,
    /// A struct, enum, union or trait.
    Type,
    /// Anything else.
    Other,
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) line: usize,
    /// Number of its lines.
    pub(crate) length: usize,
    pub(crate) is_test: bool,
}

impl Syntax {
    /// Reads a file.
    ///
    /// # Errors
    /// The text is not valid Rust.
    pub(crate) fn read(text: &str) -> syn::Result<Syntax> {
        let file = syn::parse_file(text)?;
        let mut reader = Reader::default();
        reader.visit_file(&file);
        let mut syntax = reader.syntax;
        let production = file.items.iter().filter(|item| !is_for_tests(attributes(item)));
        syntax.production_lines = production.map(|item| item.span().end().line).max().unwrap_or_default();
        note_unsafe(text.parse::<TokenStream>()?, &mut syntax.unsafe_lines);
        Ok(syntax)
    }
}

#[derive(Default)]
struct Reader {
    syntax: Syntax,
    inner: Vec<String>,
    /// Number of surrounding items that are compiled for tests only.
    test_depth: usize,
}

impl Reader {
    fn path(&self, span: Span, segments: Vec<String>) -> UsedPath {
        let line = span.start().line;
        UsedPath { line, inner: self.inner.clone(), segments, is_test: self.test_depth > 0 }
    }

    fn declare(&mut self, kind: ItemKind, name: &syn::Ident) {
        let (inner, is_test) = (self.inner.clone(), self.test_depth > 0);
        let line = name.span().start().line;
        self.syntax.items.push(Item { kind, name: name.to_string(), line, inner, is_test });
    }

    fn note_function(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let line = signature.fn_token.span.start().line;
        let length = body.brace_token.span.close().end().line - line + 1;
        let is_test = self.test_depth > 0;
        self.syntax.functions.push(Function { name: signature.ident.to_string(), line, length, is_test });
    }

    /// Visits what has these attributes.
    fn within(&mut self, attributes: &[syn::Attribute], visit: impl FnOnce(&mut Reader)) {
        let depth = usize::from(is_for_tests(attributes));
        self.test_depth += depth;
        visit(self);
        self.test_depth -= depth;
    }

    /// Expands the tree of an import.
    fn import(&mut self, tree: &syn::UseTree, mut segments: Vec<String>) {
        let (name, span) = match tree {
            syn::UseTree::Path(path) => {
                segments.push(path.ident.to_string());
                return self.import(&path.tree, segments);
            }
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(tree, segments.clone()));
            }
            syn::UseTree::Glob(glob) => ("*".to_owned(), glob.span()),
            syn::UseTree::Name(name) => {
                segments.push(name.ident.to_string());
                (name.ident.to_string(), name.ident.span())
            }
            syn::UseTree::Rename(rename) => {
                segments.push(rename.ident.to_string());
                (rename.rename.to_string(), rename.ident.span())
            }
        };
        let mut name = name;
        // `a::{self}` is `a`.
        if segments.len() > 1 && segments.last().is_some_and(|last| last == "self") {
            segments.pop();
            if name == "self" {
                name = segments.last().cloned().unwrap_or_default();
            }
        }
        let path = self.path(span, segments);
        self.syntax.imports.push(Import { name, path });
    }

    /// Finds paths in the arguments of a macro, which may be of any form.
    fn read_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut span = Span::call_site();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.end_path(&mut path, span);
                        span = ident.span();
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => colons += 1,
                token => {
                    self.end_path(&mut path, span);
                    colons = 0;
                    if let TokenTree::Group(group) = token {
                        self.read_tokens(group.stream());
                    }
                }
            }
        }
        self.end_path(&mut path, span);
    }

    fn end_path(&mut self, path: &mut Vec<String>, span: Span) {
        let segments = std::mem::take(path);
        if segments.len() > 1 {
            let path = self.path(span, segments);
            self.syntax.paths.push(path);
        }
    }
}

impl<'f> Visit<'f> for Reader {
    fn visit_item(&mut self, item: &'f syn::Item) {
        self.within(attributes(item), |reader| {
            match item {
                syn::Item::Struct(item) => reader.declare(ItemKind::Type, &item.ident),
                syn::Item::Enum(item) => reader.declare(ItemKind::Type, &item.ident),
                syn::Item::Union(item) => reader.declare(ItemKind::Type, &item.ident),
                syn::Item::Trait(item) => reader.declare(ItemKind::Type, &item.ident),
                syn::Item::Type(item) => reader.declare(ItemKind::Other, &item.ident),
                syn::Item::Const(item) => reader.declare(ItemKind::Other, &item.ident),
                syn::Item::Static(item) => reader.declare(ItemKind::Other, &item.ident),
                syn::Item::Fn(item) => reader.declare(ItemKind::Other, &item.sig.ident),
                _ => {}
            }
            visit::visit_item(reader, item);
        });
    }

    fn visit_item_mod(&mut self, module: &'f syn::ItemMod) {
        let Some((_, items)) = &module.content else {
            return self.declare(ItemKind::ModuleFile, &module.ident);
        };
        self.declare(ItemKind::InlineModule, &module.ident);
        self.inner.push(module.ident.to_string());
        items.iter().for_each(|item| self.visit_item(item));
        self.inner.pop();
    }

    fn visit_item_use(&mut self, import: &'f syn::ItemUse) {
        // With a leading `::` it is a crate.
        if import.leading_colon.is_none() {
            self.import(&import.tree, Vec::new());
        }
    }

    fn visit_item_fn(&mut self, function: &'f syn::ItemFn) {
        self.note_function(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'f syn::ImplItemFn) {
        self.within(&function.attrs, |reader| {
            reader.note_function(&function.sig, &function.block);
            visit::visit_impl_item_fn(reader, function);
        });
    }

    fn visit_trait_item_fn(&mut self, function: &'f syn::TraitItemFn) {
        self.within(&function.attrs, |reader| {
            if let Some(body) = &function.default {
                reader.note_function(&function.sig, body);
            }
            visit::visit_trait_item_fn(reader, function);
        });
    }

    fn visit_field(&mut self, field: &'f syn::Field) {
        self.within(&field.attrs, |reader| visit::visit_field(reader, field));
    }

    fn visit_local(&mut self, local: &'f syn::Local) {
        self.within(&local.attrs, |reader| visit::visit_local(reader, local));
    }

    fn visit_path(&mut self, path: &'f syn::Path) {
        if path.segments.len() > 1 && path.leading_colon.is_none() {
            let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            let path = self.path(path.span(), segments);
            self.syntax.paths.push(path);
        }
        visit::visit_path(self, path);
    }

    // `pub(in a::b)` names a module that the item is in.
    fn visit_vis_restricted(&mut self, _: &'f syn::VisRestricted) {}

    fn visit_macro(&mut self, call: &'f syn::Macro) {
        self.visit_path(&call.path);
        self.read_tokens(call.tokens.clone());
    }
}

/// Whether an item is compiled for tests only: `#[cfg(test)]`, alone or in `all(…)`.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    fn requires_test(condition: &syn::Meta) -> bool {
        match condition {
            syn::Meta::Path(path) => path.is_ident("test"),
            syn::Meta::List(list) if list.path.is_ident("all") => {
                let all = syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
                list.parse_args_with(all).is_ok_and(|all| all.iter().any(requires_test))
            }
            _ => false,
        }
    }
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions
        .filter_map(|condition| condition.parse_args::<syn::Meta>().ok())
        .any(|condition| requires_test(&condition))
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::ExternCrate(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::ForeignMod(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::TraitAlias(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Union(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn note_unsafe(tokens: TokenStream, lines: &mut Vec<usize>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) if ident == "unsafe" => lines.push(ident.span().start().line),
            TokenTree::Group(group) => note_unsafe(group.stream(), lines),
            _ => {}
        }
    }
}

#[test]
fn paths_are_found_in_imports_code_and_macros() {
    let text = r##"
use crate::tls::Bundle; // crate::admin
use crate::{egress::{pool, self as e}, forward::*};
fn a<'a>(b: &'a super::x::Y) -> char { let _ = "crate::openapi"; assert_eq!(c, crate::d::e(f::G, [h::i])); '"' }
pub(in crate::listen) struct J(k::L<m::N>);
"##;
    let syntax = Syntax::read(text).unwrap();
    let imports: Vec<_> =
        syntax.imports.iter().map(|import| (&*import.name, import.path.segments.join("::"))).collect();
    let expected = [("Bundle", "crate::tls::Bundle"), ("pool", "crate::egress::pool"), ("e", "crate::egress")];
    assert_eq!(imports[..3], expected.map(|(name, path)| (name, path.to_owned())));
    assert_eq!(imports[3..], [("*", "crate::forward".to_owned())]);
    let paths: Vec<_> = syntax.paths.iter().map(|path| (path.line, path.segments.join("::"))).collect();
    let expected = [(4, "super::x::Y"), (4, "crate::d::e"), (4, "f::G"), (4, "h::i"), (5, "k::L"), (5, "m::N")];
    for (line, path) in expected {
        assert!(paths.contains(&(line, path.to_owned())), "{path} in {paths:?}");
    }
    assert_eq!(paths.len(), expected.len(), "{paths:?}");
}

#[test]
fn items_know_their_module_and_whether_they_are_for_tests() {
    let text = "
mod a;
#[cfg(test)]
fn early() { b::c() }
struct D;
mod e { struct F; #[cfg(all(test, unix))] struct G; }
#[cfg(not(test))]
fn late() {
}
#[cfg(test)]
mod tests {
    use super::D;
    struct H;
}
";
    let syntax = Syntax::read(text).unwrap();
    let items: Vec<_> = syntax.items.iter().map(|item| (&*item.name, item.inner.join("::"), item.is_test)).collect();
    let expected = [
        ("a", "", false),
        ("early", "", true),
        ("D", "", false),
        ("e", "", false),
        ("F", "e", false),
        ("G", "e", true),
        ("late", "", false),
        ("tests", "", true),
        ("H", "tests", true),
    ];
    assert_eq!(items, expected.map(|(name, inner, is_test)| (name, inner.to_owned(), is_test)));
    assert!(syntax.paths[0].is_test && syntax.imports[0].path.is_test);
    assert_eq!(syntax.production_lines, 9);
}

#[test]
fn functions_have_lines_and_unsafe_is_found() {
    let text =
        "trait A { fn b(); fn c() {\n} }\nimpl D {\n    /// E.\n    pub fn f() {\n        g! { unsafe }\n    }\n}\n";
    let syntax = Syntax::read(text).unwrap();
    let functions: Vec<_> = syntax.functions.iter().map(|f| (&*f.name, f.line, f.length)).collect();
    assert_eq!(functions, [("c", 1, 2), ("f", 5, 3)]);
    assert_eq!(syntax.unsafe_lines, [6]);
}
