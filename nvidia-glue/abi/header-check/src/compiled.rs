//! Numbers, classes and structs of a release, by the C compiler.

use std::{
    collections::{BTreeSet, HashMap},
    env,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

use crate::{
    release::{DRIVER_HEADERS, RESOURCE_LIST, Release, ReleaseError, SDK},
    types::Types,
};

/// Result of compiling a release's headers.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// Numbers by their names, those that were asked for and are defined.
    pub(crate) numbers: HashMap<String, u64>,
    /// Types of parameters whose number within their class is defined, `TYPE_MESSAGE_ID`.
    pub(crate) messages: BTreeSet<String>,
    /// Classes that the driver has.
    pub(crate) classes: Vec<Class>,
    /// All types.
    pub(crate) types: Types,
}

/// A class of `resource_list.h`.
#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) name: String,
    pub(crate) number: u64,
    /// Bytes of its parameters; 0: none.
    pub(crate) params_size: u64,
    /// Type of its parameters.
    pub(crate) params: Option<String>,
}

/// A release that could not be compiled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompileError {
    #[error(transparent)]
    Release(#[from] ReleaseError),
    #[error("{compiler} could not be started: {source}; install gcc, or name a compiler in CC")]
    Start { compiler: String, source: io::Error },
    #[error("the headers did not compile: {0}")]
    Failed(String),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("what the compiler wrote could not be read: {0}")]
    Object(#[from] object::Error),
    #[error("what the compiler wrote could not be read: {0}")]
    Dwarf(#[from] gimli::Error),
}

/// Prefixes of the names in what is compiled.
const NUMBER: &str = "number_";
const CLASS_NUMBER: &str = "class_number_";
const CLASS_SIZE: &str = "class_size_";
const CLASS_PARAMS: &str = "class_params_";

/// One constant for each class. What else the list says, the preprocessor drops.
const CLASS_MACROS: &str = "\
#define RS_NONE 0
#define RS_REQUIRED(type) sizeof(type)
#define RS_OPTIONAL(type) sizeof(type)
#define RS_ENTRY(class, internal, multi, parents, params, ...) \\
    const unsigned long long class_number_##class = class; \\
    const unsigned long long class_size_##class = params; \\
    const char class_params_##class[] = #params;
";

/// Compiles a release's headers, the numbers of those `names` that they define as macros, and
/// `enumerators`. `literals` chooses further macros, whose text is an integer.
pub(crate) fn compile(
    release: &Release,
    names: &BTreeSet<String>,
    enumerators: &[&str],
    literals: impl Fn(&str) -> bool,
) -> Result<Compiled, CompileError> {
    let folder = tempfile::tempdir().map_err(|source| CompileError::File { path: env::temp_dir(), source })?;
    let source = folder.path().join("headers.c");
    let includes = includes(release)?;
    write(&source, &includes)?;
    let macros = run(release, &["-E", "-dM"], &source, None)?;
    let messages = macros.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once("_MESSAGE_ID "));
    let messages = messages.map(|(name, _)| name.to_owned()).collect();
    let defined = macros
        .lines()
        .filter_map(|line| line.strip_prefix("#define ")?.split_once(' '))
        .filter(|(name, text)| names.contains(*name) || (literals(name) && is_integer(text)));
    let mut text = includes;
    for name in defined.map(|(name, _)| name).chain(enumerators.iter().copied()) {
        let _ = writeln!(text, "const unsigned long long {NUMBER}{name} = (unsigned long long)({name});");
    }
    text.push_str(CLASS_MACROS);
    let _ = writeln!(text, "#include \"{}\"", release.folder.join(RESOURCE_LIST).display());
    write(&source, &text)?;
    let object = folder.path().join("headers.so");
    let flags = ["-shared", "-fPIC", "-nostdlib", "-g", "-gdwarf-4", "-fno-eliminate-unused-debug-types"];
    run(release, &flags, &source, Some(&object))?;
    let bytes = fs::read(&object).map_err(|source| CompileError::File { path: object, source })?;
    Ok(Compiled { messages, ..read_object(&bytes)? })
}

/// Text that includes all headers.
fn includes(release: &Release) -> Result<String, CompileError> {
    let mut text = String::from("#include <stddef.h>\n#include \"nvtypes.h\"\n#include \"nvos.h\"\n");
    let mut add = |header: &Path| {
        let _ = writeln!(text, "#include \"{}\"", header.display());
    };
    for folder in ["ctrl", "class", "alloc"] {
        for header in release.headers_below(&format!("{SDK}/{folder}"))? {
            add(&header);
        }
    }
    add(&release.folder.join(SDK).join("nvstatus.h"));
    for header in DRIVER_HEADERS {
        add(&release.folder.join(header));
    }
    Ok(text)
}

fn write(path: &Path, text: &str) -> Result<(), CompileError> {
    fs::write(path, text).map_err(|source| CompileError::File { path: path.to_owned(), source })
}

/// Runs the compiler; returns what it printed.
fn run(release: &Release, flags: &[&str], source: &Path, output: Option<&Path>) -> Result<String, CompileError> {
    let compiler = env::var("CC").unwrap_or_else(|_| String::from("cc"));
    let mut command = Command::new(&compiler);
    // A name that is defined twice would be a warning.
    command.args(["-std=gnu11", "-Werror"]).args(flags);
    let folders = DRIVER_HEADERS.iter().filter_map(|header| Path::new(header).parent());
    // Some headers are in several folders: those for programs come first.
    for folder in [Path::new(SDK), Path::new("src/common/inc")].into_iter().chain(folders) {
        command.arg("-I").arg(release.folder.join(folder));
    }
    command.arg(source);
    if let Some(output) = output {
        command.arg("-o").arg(output);
    }
    let done = command.output().map_err(|source| CompileError::Start { compiler, source })?;
    if done.status.success() {
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    } else {
        Err(CompileError::Failed(String::from_utf8_lossy(&done.stderr).into_owned()))
    }
}

/// Returns whether a macro's text is an integer, in parentheses or not: `(0x20800101)`, `0x2080U`.
fn is_integer(text: &str) -> bool {
    let text = text.trim().trim_start_matches('(').trim_end_matches(')');
    let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
    match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).is_ok(),
        None => digits.parse::<u64>().is_ok(),
    }
}

fn read_object(bytes: &[u8]) -> Result<Compiled, CompileError> {
    let file = object::File::parse(bytes)?;
    let mut constants = HashMap::new();
    for symbol in file.symbols().filter(|symbol| symbol.is_definition()) {
        let Some(section) = symbol.section_index() else { continue };
        let section = file.section_by_index(section)?;
        if let Some(data) = section.data_range(symbol.address(), symbol.size())? {
            constants.insert(symbol.name()?, data);
        }
    }
    let dwarf = gimli::Dwarf::load(|id| {
        let data = file.section_by_name(id.name()).map(|section| section.data()).transpose()?.unwrap_or_default();
        Ok::<_, object::Error>(gimli::EndianSlice::new(data, gimli::LittleEndian))
    })?;
    let number = |name: &str| constants.get(name).and_then(|data| Some(u64::from_le_bytes((*data).try_into().ok()?)));
    let mut compiled = Compiled {
        numbers: HashMap::new(),
        messages: BTreeSet::new(),
        classes: Vec::new(),
        types: Types::read(&dwarf)?,
    };
    for name in constants.keys() {
        if let Some(own) = name.strip_prefix(NUMBER) {
            compiled.numbers.extend(number(name).map(|number| (own.to_owned(), number)));
        } else if let Some(own) = name.strip_prefix(CLASS_NUMBER) {
            compiled.classes.push(Class {
                name: own.to_owned(),
                number: number(name).unwrap_or_default(),
                params_size: number(&format!("{CLASS_SIZE}{own}")).unwrap_or_default(),
                params: constants.get(format!("{CLASS_PARAMS}{own}").as_str()).and_then(|data| params_type(data)),
            });
        }
    }
    compiled.classes.sort_by_key(|class| class.number);
    Ok(compiled)
}

/// The type in `RS_REQUIRED(type)`.
fn params_type(text: &[u8]) -> Option<String> {
    let text = str::from_utf8(text).ok()?;
    Some(text.split_once('(')?.1.split_once(')')?.0.trim().to_owned())
}
