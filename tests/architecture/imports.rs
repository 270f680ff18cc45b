//! Which file of the workspace imports which, read from the sources with `syn`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;
use syn::{Item, UseTree};

/// The folder of every crate in `src`, by the name that sources use for the crate.
pub fn crate_folders(root: &Path) -> BTreeMap<String, PathBuf> {
    let folders = std::fs::read_dir(root.join("src")).expect("src");
    let folders = folders.flatten().map(|entry| entry.path());
    let crates = folders.filter(|folder| folder.join("Cargo.toml").exists());
    crates
        .map(|folder| (folder.file_name().unwrap().to_string_lossy().into_owned(), folder))
        .collect()
}

/// The file of each module, by the module's path. The path of the crate's root is empty.
type Modules = BTreeMap<Vec<String>, PathBuf>;

/// For every file of the crates, except modules under `cfg(test)`, the files that it names in a `use` or in a path. All paths
/// are relative to `src`.
pub fn files_of(crates: &BTreeMap<String, PathBuf>) -> BTreeMap<String, BTreeSet<String>> {
    let modules: BTreeMap<&str, Modules> = crates
        .iter()
        .map(|(name, folder)| (name.as_str(), modules_of(folder)))
        .collect();
    let mut files = BTreeMap::new();
    for (own, its) in &modules {
        for (module, path) in its {
            let mut reader = Reader {
                crates,
                modules: &modules,
                own,
                module: module.clone(),
                found: BTreeSet::new(),
            };
            reader.visit_file(&parse(path));
            let label = label(own, &crates[*own], path);
            reader.found.remove(&label);
            files.insert(label, reader.found);
        }
    }
    files
}

fn label(name: &str, folder: &Path, path: &Path) -> String {
    format!("{name}/{}", path.strip_prefix(folder).unwrap().display())
}

fn parse(path: &Path) -> syn::File {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string() == "test")
    })
}

fn modules_of(folder: &Path) -> Modules {
    let mut modules = Modules::new();
    collect(&folder.join("lib.rs"), folder, &mut Vec::new(), &mut modules);
    modules
}

/// Adds the file `path` and every file that it reaches through `mod name;`. The modules below `path` lie in `folder`.
fn collect(path: &Path, folder: &Path, module: &mut Vec<String>, modules: &mut Modules) {
    modules.insert(module.clone(), path.to_owned());
    for item in parse(path).items {
        let Item::Mod(child) = item else { continue };
        if child.content.is_some() || is_test(&child.attrs) {
            continue;
        }
        let name = child.ident.to_string();
        let below = folder.join(&name);
        let candidates = [folder.join(format!("{name}.rs")), below.join("mod.rs")];
        let file = candidates.iter().find(|path| path.exists());
        let file = file.unwrap_or_else(|| panic!("{}: no file for mod {name}", path.display()));
        module.push(name);
        collect(file, &below, module, modules);
        module.pop();
    }
}

struct Reader<'a> {
    crates: &'a BTreeMap<String, PathBuf>,
    modules: &'a BTreeMap<&'a str, Modules>,
    own: &'a str,
    /// The path of the module that is being read, which may be a `mod name { ... }`.
    module: Vec<String>,
    found: BTreeSet<String>,
}

impl Reader<'_> {
    /// Adds to `found` the file of the longest module with which `path` begins.
    fn note(&mut self, path: &[String]) {
        let Some(first) = path.first() else { return };
        let (name, mut module, rest) = match first.as_str() {
            "crate" => (self.own, Vec::new(), &path[1..]),
            "self" | "super" => {
                let mut module = self.module.clone();
                let ups = path
                    .iter()
                    .take_while(|part| *part == "self" || *part == "super")
                    .count();
                for _ in path[..ups].iter().filter(|part| *part == "super") {
                    module.pop();
                }
                (self.own, module, &path[ups..])
            }
            _ => {
                let mut child = self.module.clone();
                child.push(first.clone());
                if self.modules[self.own].contains_key(&child) {
                    (self.own, child, &path[1..])
                } else if let Some((name, _)) = self.modules.get_key_value(first.as_str()) {
                    (*name, Vec::new(), &path[1..])
                } else {
                    return;
                }
            }
        };
        let modules = &self.modules[name];
        // Inside `mod name { ... }` the module has no file of its own.
        while !modules.contains_key(&module) && module.pop().is_some() {}
        for part in rest {
            module.push(part.clone());
            if !modules.contains_key(&module) {
                module.pop();
                break;
            }
        }
        self.found.insert(label(name, &self.crates[name], &modules[&module]));
    }

    fn note_tree(&mut self, tree: &UseTree, path: &mut Vec<String>) {
        match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.note_tree(&part.tree, path);
                path.pop();
            }
            UseTree::Name(name) if name.ident == "self" => self.note(path),
            UseTree::Name(name) => self.note_with(path, name.ident.to_string()),
            UseTree::Rename(name) => self.note_with(path, name.ident.to_string()),
            UseTree::Glob(_) => self.note(path),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.note_tree(tree, path);
                }
            }
        }
    }

    fn note_with(&mut self, path: &mut Vec<String>, last: String) {
        path.push(last);
        self.note(path);
        path.pop();
    }

    /// Notes the paths in the arguments of a macro, which `syn` leaves as tokens.
    fn note_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is_colon = |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(mark)) if mark.as_char() == ':');
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.note_tokens(group.stream()),
                TokenTree::Ident(ident) => {
                    let mut path = vec![ident.to_string()];
                    while is_colon(at + 1) && is_colon(at + 2) {
                        let Some(TokenTree::Ident(next)) = tokens.get(at + 3) else {
                            break;
                        };
                        path.push(next.to_string());
                        at += 3;
                    }
                    if path.len() > 1 {
                        self.note(&path);
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_test(&item.attrs) {
            return;
        }
        self.module.push(item.ident.to_string());
        syn::visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // A re-export offers a name to other files; the file itself does not need the name.
        if matches!(item.vis, syn::Visibility::Inherited) {
            self.note_tree(&item.tree, &mut Vec::new());
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let path: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
            self.note(&path);
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.note_tokens(call.tokens.clone());
    }
}
