//! The tables of classes and controls that are refused, from `src/classes/refused.txt` and
//! `src/controls/refused.txt`.

use std::{collections::BTreeMap, env, error::Error, fmt::Write, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::var("OUT_DIR")?;
    let tables = [
        ("classes", "Class", "Class { id: $id, name: $name, kind: ClassKind::Refused($why), params_size: 0 }"),
        ("controls", "ControlRow", "row($id, $name, ControlRule::Refuse($why))"),
    ];
    for (table, row, rust) in tables {
        let path = format!("src/{table}/refused.txt");
        println!("cargo::rerun-if-changed={path}");
        let rows =
            rows(&fs::read_to_string(&path)?).map_err(|line| format!("{path}: not understood, or twice: {line}"))?;
        let mut text = format!("/// Every refused one, by number.\nconst REFUSED: &[{row}] = &[\n");
        for (id, [name, why]) in rows {
            let row = rust.replace("$id", &format!("{id:#x}")).replace("$name", &format!("{name:?}"));
            writeln!(text, "    {},", row.replace("$why", &why))?;
        }
        fs::write(Path::new(&folder).join(format!("refused_{table}.rs")), text + "];\n")?;
    }
    Ok(())
}

/// Returns names, and statuses with reasons, by number; or the line that is wrong.
fn rows(text: &str) -> Result<BTreeMap<u32, [String; 2]>, &str> {
    let (mut rows, mut why) = (BTreeMap::new(), None);
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some((status, reason)) = line.strip_prefix('[').and_then(|line| line.split_once("] ")) {
            why = Some(format!("Status::{status}, {reason:?}"));
            continue;
        }
        let row = line.strip_prefix("0x").and_then(|line| line.split_once(' '));
        let row = row.filter(|(_, name)| !name.is_empty());
        let row = row.and_then(|(id, name)| Some((u32::from_str_radix(id, 16).ok()?, name)));
        let (Some((id, name)), Some(why)) = (row, &why) else { return Err(line) };
        if rows.insert(id, [name.to_owned(), why.clone()]).is_some() {
            return Err(line);
        }
    }
    Ok(rows)
}
