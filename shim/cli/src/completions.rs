//! Completions for shells: what clap generates from the command line, and around it the names of
//! this node's containers and cards, for which the shell asks `egpu` itself.

use clap::Command;
use clap_complete::Shell;

/// Prints names that need no quotes; others may come from a container.
const NAMES: &str = r"
_egpu_names() {
    case $1 in
        containers) egpu ps -o 'template={{.id}}\n{{.pod.namespace}}/{{.pod.pod}}/{{.pod.container}}' ;;
        cards) egpu cards -o 'template={{.index}}\n{{.uuid}}' ;;
    esac 2>/dev/null | grep -xE '[A-Za-z0-9][A-Za-z0-9._/-]*'
}
";

const BASH: &str = r#"
_egpu_with_names() {
    local previous=$3 kind= name word
    # Only what is joined to it by = is its own.
    case $previous in -w | --watch) previous=${COMP_WORDS[COMP_CWORD - 2]} ;; esac
    _egpu "$1" "$2" "$previous"
    case $previous in
        inspect | set) kind=containers ;;
        # clap offers files.
        --container) kind=containers COMPREPLY=() ;;
        policy) kind=cards ;;
    esac
    # Without the words that stand for values.
    local words=("${COMPREPLY[@]}")
    COMPREPLY=()
    for word in "${words[@]}"; do
        [[ $word == [\<\[]* ]] || COMPREPLY+=("$word")
    done
    [ -n "$kind" ] || return 0
    # No files where no name fits.
    compopt +o bashdefault +o default
    while read -r name; do
        [[ $name == "$2"* ]] && COMPREPLY+=("$name")
    done < <(_egpu_names "$kind")
    return 0
}
complete -F _egpu_with_names -o bashdefault -o default egpu
"#;

const ZSH: &str = r#"
_egpu_containers() {
    local -a names=("${(@f)$(_egpu_names containers)}")
    compadd -a names
}
_egpu_cards() {
    local -a names=("${(@f)$(_egpu_names cards)}")
    compadd -a names
}
"#;

const FISH: &str = r#"
function __egpu_names
    switch $argv[1]
        case containers
            egpu ps -o 'template={{.id}}\n{{.pod.namespace}}/{{.pod.pod}}/{{.pod.container}}' 2>/dev/null
        case cards
            egpu cards -o 'template={{.index}}\n{{.uuid}}' 2>/dev/null
    end | string match -r '^[A-Za-z0-9][A-Za-z0-9._/-]*$'
end
complete -c egpu -n "__fish_egpu_using_subcommand inspect" -f -a "(__egpu_names containers)"
complete -c egpu -n "__fish_egpu_using_subcommand set" -f -a "(__egpu_names containers)"
complete -c egpu -n "__fish_egpu_using_subcommand policy" -f -a "(__egpu_names cards)"
complete -c egpu -n "__fish_egpu_using_subcommand events" -l container -f -r -a "(__egpu_names containers)"
"#;

/// Returns the script of a command line for a shell.
pub fn completions(shell: Shell, mut command: Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "egpu", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => script + NAMES + BASH,
        Shell::Zsh => zsh(&script),
        Shell::Fish => fish(&script) + FISH,
        _ => script,
    }
}

/// Has the arguments that are names completed by the functions above.
fn zsh(script: &str) -> String {
    let completed = |line: &str| {
        let names = match line.trim_start() {
            line if line.starts_with("':id -- ") || line.starts_with("'--container=[") => "_egpu_containers",
            line if line.starts_with("'::card -- ") => "_egpu_cards",
            watch if watch.starts_with("'-w+[") || watch.starts_with("'--watch=[") => {
                // `=-`: the argument has to be joined.
                return format!("{}\n", line.replacen("+[", "=-[", 1).replacen("=[", "=-[", 1));
            }
            _ => return format!("{line}\n"),
        };
        format!("{}\n", line.replace(":_default'", &format!(":{names}'")))
    };
    // Its first line has to stay the first one.
    let (first, rest) = script.split_once('\n').unwrap_or((script, ""));
    let rest: String = rest.lines().map(completed).collect();
    format!("{first}\n{NAMES}{ZSH}{rest}")
}

/// Has the word after `--watch` completed as another argument: fish knows no argument that has to
/// be joined.
fn fish(script: &str) -> String {
    let completed = |line: &str| match line.strip_suffix(" -r") {
        Some(watch) if line.contains(" -l watch ") => format!("{watch}\n"),
        _ => format!("{line}\n"),
    };
    script.lines().map(completed).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

    use clap::CommandFactory as _;

    use super::*;

    /// An `egpu` that has one container with a hostile pod and two cards.
    const EGPU: &str = "#!/bin/sh\ncase $1 in\nps) printf '%s\\n' web-1 '$(touch hacked)/p/c' team/train-0/main -rf ;;\ncards) printf '%s\\n' 0 GPU-a ;;\nesac\n";

    fn completed(words: &[&str]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("egpu"), EGPU).unwrap();
        fs::set_permissions(path("egpu"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(path("script"), completions(Shell::Bash, crate::Cli::command())).unwrap();
        fs::write(path("web-file"), "").unwrap();
        let [.., previous, current] = words else { panic!("{words:?}") };
        let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let program = format!(
            "source ./script; PATH=.:$PATH; COMP_WORDS=({}); COMP_CWORD={}; \
             compopt() {{ has_fallback=; }}; has_fallback=1; _egpu_with_names egpu '{current}' '{previous}'; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\" | grep . || [ -z $has_fallback ] || compgen -f",
            quoted.join(" "),
            words.len() - 1,
        );
        let output = Command::new("bash").args(["-c", &program]).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(!path("hacked").exists(), "a name was executed");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn bash_knows_containers_cards_policies_and_codes() {
        assert_eq!(completed(&["egpu", "inspect", "w"]), ["web-1"]);
        let all = completed(&["egpu", "set", ""]);
        assert!(all.contains(&"web-1".to_owned()) && all.contains(&"team/train-0/main".to_owned()), "{all:?}");
        assert!(all.iter().all(|word| !word.contains('$') && word != "-rf" && !word.starts_with('<')), "{all:?}");
        assert_eq!(completed(&["egpu", "events", "--container", "te"]), ["team/train-0/main"]);
        assert_eq!(completed(&["egpu", "policy", "G"]), ["GPU-a"]);
        assert_eq!(completed(&["egpu", "policy", "sof"]), ["soft"]);
        assert_eq!(completed(&["egpu", "explain", "no-mem"]), ["no-memory"]);
        assert_eq!(completed(&["egpu", "insp"]), ["inspect"]);
        assert!(completed(&["egpu", "doctor", "x"]).contains(&"web-file".to_owned()));
    }

    #[test]
    fn files_are_no_containers() {
        assert_eq!(completed(&["egpu", "events", "--container", "w"]), ["web-1"]);
        assert!(completed(&["egpu", "inspect", "--watch", ""]).contains(&"web-1".to_owned()));
        for words in [&["egpu", "inspect", "web-f"], &["egpu", "policy", "web-f"]] {
            assert_eq!(completed(words), [""; 0], "{words:?}");
        }
    }

    #[test]
    fn zsh_and_fish_ask_for_names_too() {
        let script = completions(Shell::Zsh, crate::Cli::command());
        assert!(script.starts_with("#compdef egpu\n"), "{script}");
        for (function, uses) in [(":_egpu_containers'", 3), (":_egpu_cards'", 1)] {
            assert_eq!(script.matches(function).count(), uses, "{function}");
        }
        assert!(script.contains("'-w=-[") && script.contains("'--watch=-["), "{script}");
        let script = completions(Shell::Fish, crate::Cli::command());
        assert!(script.lines().all(|line| !(line.contains("-l watch") && line.ends_with(" -r"))), "{script}");
        assert!(script.contains("function __fish_egpu_using_subcommand"), "what is called is there: {script}");
    }
}
