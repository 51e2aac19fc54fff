//! Changes of containerd's configuration: one table more for CRI, and nothing else.
//!
//! containerd 1.x: at the end of the file in which CRI's table is, since a plugin's table in an
//! imported file replaces the whole table. 2.x merges, so there it is a file of its own in
//! `conf.d`, in the main file's version of the format: a newer one would make containerd 2.0 to 2.2
//! forget the main file's tables, an older one would be ignored. Where a distribution renders the
//! file, it is in the template or in the folder that the file is made from.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::{
    block::{self, Part},
    changes::{self, Draft},
    config_files::{ConfigFiles, Overlay, imports, parse},
    error::InstallError,
    runtime_table::{HANDLER, RuntimeTable},
};
use crate::{
    containerd::{
        cri::{CRI_TABLES, Form, cri_is_disabled, default_runtime, runtimes},
        distribution::{Installation, Layout},
    },
    say,
};

/// Name of the file of egpu's own.
pub(super) const DROP_IN: &str = "99-egpu.toml";
/// Folder of drop-ins beside a main file that names none yet.
const DROP_INS: &str = "conf.d";
/// The first version that merges a drop-in's tables.
const FIRST_THAT_MERGES: (u32, u32) = (2, 0);

const RUNTIME: Part = Part { name: "runtime egpu", is_first: false, new_file: "version = 2\n" };
const DROP_IN_RUNTIME: Part = Part { new_file: "", ..RUNTIME };
/// All that it would have without a template.
const TEMPLATE_RUNTIME: Part = Part { new_file: "{{ template \"base\" . }}\n", ..RUNTIME };
const BUILT_IN: Part = Part { name: "built-in runtimes", is_first: false, new_file: "" };
const IMPORTS: Part = Part { name: "imports", is_first: true, new_file: "version = 3\n" };

/// Result of planning for one containerd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The draft has what is to be changed, if anything; the runtime is in this file.
    Planned(PathBuf),
    /// It needs no configuration, as CRI is off.
    CriIsOff,
    /// Somebody has made the runtime `egpu` by hand; it stays.
    ByHand,
}

/// A containerd and its configuration.
pub(super) struct ContainerdPlan<'a> {
    containerd: &'a Installation,
    files: ConfigFiles,
    /// containerd's reading of the files; `None`: it cannot be asked.
    dump: Option<Table>,
}

impl<'a> ContainerdPlan<'a> {
    /// Reads the configuration.
    pub(super) fn read(containerd: &'a Installation) -> Result<Self, InstallError> {
        let files = ConfigFiles::read(&containerd.config, &Overlay::new())?;
        let dump = files.dump(&containerd.program)?;
        Ok(Self { containerd, files, dump })
    }

    /// Plans what makes `egpu` a runtime of CRI.
    pub(super) fn install(&self, shim: &Path, force: bool, draft: &mut Draft) -> Result<Outcome, InstallError> {
        let effective = self.effective();
        if cri_is_disabled(&effective) {
            return Ok(Outcome::CriIsOff);
        }
        let marked = self.marked_file(draft)?;
        // containerd 1.x, where a 2.x was: there a drop-in would replace all of CRI's table.
        if let Some((path, part)) = marked.as_ref().filter(|(path, _)| self.is_own_drop_in(path) && !self.merges()) {
            let text = draft.text(path)?;
            refuse_edits(path, text.as_deref(), part, &self.body(part, &self.table(&effective, shim)), force)?;
            *text = text.as_deref().and_then(|text| part.remove(text));
            self.remove_import(draft)?;
            return self.after(draft)?.install(shim, force, draft);
        }
        if marked.is_none()
            && let Some((_, runtime)) = runtimes(&effective).find(|(name, _)| *name == HANDLER)
        {
            let path = self.containerd.config.clone();
            return Form::of(runtime).map(|_| Outcome::ByHand).ok_or(InstallError::Foreign { path });
        }
        let (path, part) = match marked {
            Some(marked) => marked,
            None => self.target(),
        };
        let table = self.table(&effective, shim);
        let body = self.body(&part, &table);
        let text = draft.text(&path)?;
        refuse_edits(&path, text.as_deref(), &part, &body, force)?;
        let with = part.put(text.as_deref(), &body);
        if part.new_file != TEMPLATE_RUNTIME.new_file {
            parse(&path, &with).map_err(|_| InstallError::Inline { path: path.clone() })?;
        }
        *text = Some(with);
        if self.containerd.distribution.layout == Layout::Own {
            self.import(&path, draft)?;
            self.carry_built_in(&path, table.cri, draft)?;
        }
        self.check(draft, &path, &table)?;
        Ok(Outcome::Planned(path))
    }

    /// Reads it for [`Self::uninstall`]: what somebody else has broken is in nobody's way, unless
    /// egpu's part is in it. `None`: there is nothing of egpu's.
    pub(super) fn read_for_uninstall(containerd: &'a Installation) -> Result<Option<Self>, InstallError> {
        match ConfigFiles::read(&containerd.config, &Overlay::new()) {
            Ok(files) => Ok(Some(Self { dump: files.dump(&containerd.program).ok().flatten(), containerd, files })),
            Err(error) => {
                let unread = Self { containerd, files: ConfigFiles { files: Vec::new() }, dump: None };
                let text = changes::read(&containerd.config)?.unwrap_or_default();
                let is_marked = block::find(&text, RUNTIME.name).is_some();
                if is_marked || unread.marked_file(&mut Draft::default())?.is_some() { Err(error) } else { Ok(None) }
            }
        }
    }

    /// Plans to take out what [`Self::install`] has put in. `shim`: as in its plan. `written`:
    /// files that it has changed.
    pub(super) fn uninstall(
        &self,
        shim: &Path,
        written: &[PathBuf],
        force: bool,
        draft: &mut Draft,
    ) -> Result<(), InstallError> {
        if let Some((path, part)) = self.marked_file(draft)? {
            let body = self.body(&part, &self.table(&self.effective(), shim));
            let text = draft.text(&path)?;
            refuse_edits(&path, text.as_deref(), &part, &body, force)?;
            *text = remove_runtime(&path, &part, text.as_deref().unwrap_or_default())?;
        }
        self.remove_import(draft)?;
        // A table elsewhere: written by hand, or by a program that has no use for marks.
        self.after(draft)?.remove_unmarked(written, force, draft)?;
        self.refuse_missing_default(self.after(draft)?.dump.as_ref())
    }

    /// Reads it as it is going to be.
    fn after(&self, draft: &Draft) -> Result<Self, InstallError> {
        let files = ConfigFiles::read(&self.containerd.config, &draft.overlay())?;
        let dump = if self.dump.is_some() { files.dump(&self.containerd.program)? } else { None };
        Ok(Self { containerd: self.containerd, files, dump })
    }

    fn main(&self) -> Table {
        self.files.files.first().map(|file| file.table.clone()).unwrap_or_default()
    }

    /// Returns containerd's reading of the files, or, where it cannot be asked, the tables in them.
    fn effective(&self) -> Table {
        let written = || self.files.with_cri().map_or_else(|| self.main(), |file| file.table.clone());
        self.dump.clone().unwrap_or_else(written)
    }

    fn table<'s>(&self, effective: &Table, shim: &'s Path) -> RuntimeTable<'s> {
        RuntimeTable::of(self.containerd, self.format(), effective, shim)
    }

    /// Returns the version of the format that a new part has to have.
    fn format(&self) -> i64 {
        let unsaid = if self.merges() { 3 } else { 1 };
        if self.files.files.is_empty() { unsaid.max(2) } else { self.files.version().unwrap_or(unsaid) }
    }

    /// Returns the part's text.
    fn body(&self, part: &Part, table: &RuntimeTable<'_>) -> String {
        if !part.new_file.is_empty() {
            return table.text();
        }
        format!("version = {}\n\n{}", self.format(), table.text())
    }

    fn merges(&self) -> bool {
        let version = self.containerd.version.map(|version| version >= FIRST_THAT_MERGES);
        version.unwrap_or(self.files.version() >= Some(3))
    }

    /// Finds the file that has the runtime's part already.
    fn marked_file(&self, draft: &mut Draft) -> Result<Option<(PathBuf, Part)>, InstallError> {
        for (path, part) in self.places() {
            if draft.text(&path)?.as_deref().is_some_and(|text| block::find(text, RUNTIME.name).is_some()) {
                return Ok(Some((path, part)));
            }
        }
        Ok(None)
    }

    /// Lists the files in which it may be.
    pub(super) fn places(&self) -> Vec<(PathBuf, Part)> {
        let mut places: Vec<(PathBuf, Part)> = match self.containerd.distribution.layout {
            Layout::Own => vec![(self.drop_ins().join(DROP_IN), DROP_IN_RUNTIME)],
            Layout::Template(templates) => {
                templates.iter().map(|(_, name)| (self.beside(name), TEMPLATE_RUNTIME)).collect()
            }
            Layout::Folder(folder) => vec![(Path::new(folder).join(DROP_IN), DROP_IN_RUNTIME)],
        };
        for file in &self.files.files {
            places.push((file.path.clone(), part_of(&file.path)));
        }
        places
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.containerd.config.with_file_name(name)
    }

    fn is_own_drop_in(&self, path: &Path) -> bool {
        self.containerd.distribution.layout == Layout::Own && path.ends_with(DROP_IN)
    }

    fn drop_ins(&self) -> PathBuf {
        self.beside(DROP_INS)
    }

    /// Chooses the file for a new part.
    fn target(&self) -> (PathBuf, Part) {
        let main = self.main();
        if let Layout::Folder(folder) = self.containerd.distribution.layout {
            return (Path::new(folder).join(DROP_IN), DROP_IN_RUNTIME);
        }
        let home = self.containerd.config.parent().unwrap_or(Path::new("/"));
        let mut folders =
            imports(&main).filter_map(|pattern| pattern.strip_suffix("/*.toml")).map(|folder| home.join(folder));
        if let Some(folder) = folders.find(|folder| self.merges() && folder.starts_with(home)) {
            return (folder.join(DROP_IN), DROP_IN_RUNTIME);
        }
        if let Layout::Template(templates) = self.containerd.distribution.layout {
            let version = self.files.version().unwrap_or(2).min(3);
            let there = templates.iter().find(|(_, name)| self.beside(name).exists());
            let rendered = || templates.iter().find(|(other, _)| *other == version);
            if let Some((_, name)) = there.or_else(rendered) {
                return (self.beside(name), TEMPLATE_RUNTIME);
            }
        }
        if self.merges() && !main.contains_key("imports") {
            return (self.drop_ins().join(DROP_IN), DROP_IN_RUNTIME);
        }
        let with_cri = self.files.with_cri().filter(|_| !self.merges());
        (with_cri.map_or_else(|| self.containerd.config.clone(), |file| file.path.clone()), RUNTIME)
    }

    /// Has the main file import the drop-in, unless it does so already.
    fn import(&self, path: &Path, draft: &mut Draft) -> Result<(), InstallError> {
        let files = ConfigFiles::read(&self.containerd.config, &draft.overlay())?.files;
        let is_read = *path == self.containerd.config || files.iter().any(|file| file.path == path);
        if is_read || self.main().contains_key("imports") {
            return Ok(());
        }
        let body = format!("imports = [{}]\n", Value::from(self.drop_ins().join("*.toml").display().to_string()));
        let text = draft.text(&self.containerd.config)?;
        *text = Some(IMPORTS.put(text.as_deref(), &body));
        Ok(())
    }

    /// Carries over what containerd 1.x forgets as soon as a runtime is configured: its built-in
    /// ones. CRI does not start without the default one.
    fn carry_built_in(&self, path: &Path, cri: &str, draft: &mut Draft) -> Result<(), InstallError> {
        let text = draft.text(path)?;
        let table = parse(path, text.as_deref().unwrap_or_default())?;
        let written: Vec<&str> = runtimes(&table).map(|(name, _)| name).collect();
        let fallback = || {
            format!(
                "version = 2\n[plugins.{cri:?}.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n"
            )
            .parse()
        };
        let known = match (&self.dump, self.merges()) {
            (_, true) => return Ok(()),
            (Some(dump), false) => dump.clone(),
            (None, false) => fallback().unwrap_or_default(),
        };
        let forgotten: Table = runtimes(&known)
            .filter(|(name, _)| !written.contains(name))
            .map(|(name, runtime)| (name.to_owned(), Value::Table(runtime.clone())))
            .collect();
        if !forgotten.is_empty() {
            let nested = |name: &str, table: Table| Table::from_iter([(name.to_owned(), Value::Table(table))]);
            let body =
                ["runtimes", "containerd", cri, "plugins"].iter().fold(forgotten, |table, name| nested(name, table));
            *text = Some(BUILT_IN.put(text.as_deref(), &body.to_string()));
        }
        Ok(())
    }

    /// Takes the main file's imports out again, unless a file is left in their folder.
    fn remove_import(&self, draft: &mut Draft) -> Result<(), InstallError> {
        for path in changes::entries(&self.drop_ins())? {
            if path.extension().is_some_and(|extension| extension == "toml") && draft.text(&path)?.is_some() {
                return Ok(());
            }
        }
        let text = draft.text(&self.containerd.config)?;
        *text = text.as_deref().and_then(|text| IMPORTS.remove(text));
        Ok(())
    }

    /// Takes out a table that has no marks around it; one that was made by hand stays.
    fn remove_unmarked(&self, written: &[PathBuf], force: bool, draft: &mut Draft) -> Result<(), InstallError> {
        let is_in =
            |table: &Table| runtimes(table).any(|(name, runtime)| name == HANDLER && Form::of(runtime).is_some());
        let Some(file) = self.files.files.iter().find(|file| is_in(&file.table)) else { return Ok(()) };
        if !force && !written.contains(&file.path) {
            say(&format!(
                "{}: the runtime `egpu` was made by hand, and stays; --force takes it out",
                file.path.display()
            ));
            return Ok(());
        }
        let text = draft.text(&file.path)?;
        let before = text.clone().unwrap_or_default();
        let after = without_runtime(&file.path, &before)?;
        if !force {
            let difference = changes::diff(&file.path.display().to_string(), Some(&before), Some(&after));
            return Err(InstallError::Unmarked { path: file.path.clone(), difference });
        }
        let is_empty = parse(&file.path, &after)?.keys().all(|key| key == "version");
        *text = Some(after).filter(|_| !(is_empty && file.path.ends_with(DROP_IN)));
        self.remove_import(draft)
    }

    /// Asks containerd's parser: it must see the runtime, and all else as before.
    fn check(&self, draft: &Draft, path: &Path, table: &RuntimeTable<'_>) -> Result<(), InstallError> {
        let mut files = ConfigFiles::read(&self.containerd.config, &draft.overlay())?;
        // A file that is going to be rendered with it.
        if self.containerd.distribution.layout != Layout::Own && !files.files.iter().any(|file| file.path == path) {
            files.add(parse(path, &table.text())?, self.merges());
        }
        let Some(after) = files.dump(&self.containerd.program)? else { return Ok(()) };
        let seen = runtimes(&after).any(|(name, runtime)| name == HANDLER && Form::of(runtime) == Some(table.form));
        if !seen {
            return Err(InstallError::Unseen { path: path.to_owned() });
        }
        self.refuse_missing_default(Some(&after))?;
        self.refuse_side_effects(Some(&after))
    }

    /// Refuses to take CRI's default runtime away: it would not start.
    fn refuse_missing_default(&self, after: Option<&Table>) -> Result<(), InstallError> {
        let is_there = |dump: &Table, name: &str| runtimes(dump).any(|(other, _)| other == name);
        match (&self.dump, after.and_then(|after| Some((after, default_runtime(after)?)))) {
            (Some(before), Some((after, name))) if is_there(before, name) && !is_there(after, name) => {
                Err(InstallError::Default { path: self.containerd.config.clone(), name: name.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Refuses a change of anything but the runtime `egpu`.
    fn refuse_side_effects(&self, after: Option<&Table>) -> Result<(), InstallError> {
        let (Some(before), Some(after)) = (&self.dump, after) else { return Ok(()) };
        let (before, after) = (without_handler(before), without_handler(after));
        if before == after {
            return Ok(());
        }
        let path = self.containerd.config.clone();
        let (before, after) = (before.to_string(), after.to_string());
        let difference = changes::diff("containerd config dump", Some(&before), Some(&after));
        Err(InstallError::SideEffect { path, difference })
    }
}

/// Returns the runtime's part of a file.
fn part_of(path: &Path) -> Part {
    match path.extension() {
        _ if path.ends_with(DROP_IN) => DROP_IN_RUNTIME,
        Some(extension) if extension == "tmpl" => TEMPLATE_RUNTIME,
        _ => RUNTIME,
    }
}

/// Plans to take all parts out of a file that no containerd of this node reads any more.
pub(super) fn remove_parts(path: &Path, force: bool, draft: &mut Draft) -> Result<(), InstallError> {
    let part = part_of(path);
    let text = draft.text(path)?;
    let Some(with) = text.as_deref() else { return Ok(()) };
    refuse_edits(path, Some(with), &part, "", force)?;
    *text = remove_runtime(path, &part, with)?.and_then(|without| IMPORTS.remove(&without));
    Ok(())
}

/// Returns the text without the runtime's part, and without the built-in runtimes unless there is
/// another one: without them CRI would not start.
fn remove_runtime(path: &Path, part: &Part, text: &str) -> Result<Option<String>, InstallError> {
    let is_intact = block::find(text, BUILT_IN.name).is_some_and(|block| block.is_intact);
    if let Some(without) = BUILT_IN.remove(text).filter(|_| is_intact) {
        let without = part.remove(&without);
        if runtimes(&parse(path, without.as_deref().unwrap_or_default())?).next().is_none() {
            return Ok(without);
        }
    }
    Ok(part.remove(text))
}

fn without_handler(dump: &Table) -> Table {
    let mut dump = dump.clone();
    for name in CRI_TABLES {
        let path = ["plugins", name, "containerd", "runtimes"];
        let table = path.iter().try_fold(&mut dump, |table, name| table.get_mut(*name)?.as_table_mut());
        if let Some(runtimes) = table {
            runtimes.remove(HANDLER);
        }
    }
    dump
}

/// Returns the text without the runtime's table; all else stays as it is written.
fn without_runtime(path: &Path, text: &str) -> Result<String, InstallError> {
    let failed =
        |source: toml_edit::TomlError| InstallError::TomlEdit { path: path.to_owned(), source: Box::new(source) };
    let mut document: toml_edit::DocumentMut = text.parse().map_err(failed)?;
    for name in CRI_TABLES {
        let path = ["plugins", name, "containerd", "runtimes"];
        let first: &mut dyn toml_edit::TableLike = document.as_table_mut();
        let table = path.iter().try_fold(first, |table, name| table.get_mut(name)?.as_table_like_mut());
        if let Some(runtimes) = table {
            runtimes.remove(HANDLER);
        }
    }
    Ok(document.to_string())
}

/// Refuses to replace or remove a part that somebody has edited.
fn refuse_edits(path: &Path, text: Option<&str>, part: &Part, body: &str, force: bool) -> Result<(), InstallError> {
    match text.and_then(|text| block::find(text, part.name)) {
        Some(block) if !block.is_intact && !force => {
            let difference = changes::diff(&path.display().to_string(), Some(body), Some(block.body));
            Err(InstallError::Edited { path: path.to_owned(), difference })
        }
        _ => Ok(()),
    }
}
