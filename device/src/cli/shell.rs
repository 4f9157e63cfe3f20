//! `baton completions` and `baton man`: what shells and `man` know of the commands.
//!
//! Both are made of the command line's own definition, so they name every option that this program has.

use super::Cli;
use anyhow::Context as _;
use baton_terminal::{out, outln};
use clap::{Args, Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;
use std::fs;
use std::path::{Path, PathBuf};

/// Text below the options of `baton completions`.
pub(super) const COMPLETIONS_HELP: &str = "\
bash:  baton completions bash > ~/.local/share/bash-completion/completions/baton
zsh:   baton completions zsh > \"${fpath[1]}/_baton\"
fish:  baton completions fish > ~/.config/fish/completions/baton.fish";

/// Text below the options of `baton man`.
pub(super) const MAN_HELP: &str = "\
Read it now:     baton man | man -l -
Install them:    baton man --dir ~/.local/share/man/man1";

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Write the page of each command into this folder; it is made if it is not there
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// The commands, with the names that their help shows.
fn commands() -> Command {
    let mut all = Cli::command();
    all.build();
    all
}

pub(super) fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "baton", &mut script);
    out!("{}", String::from_utf8_lossy(&script))?;
    Ok(())
}

pub(super) fn man(args: &ManArgs) -> anyhow::Result<()> {
    let Some(dir) = &args.dir else {
        out!("{}", page(commands())?)?;
        return Ok(());
    };
    fs::create_dir_all(dir).with_context(|| format!("make the folder `{}`", dir.display()))?;
    let mut count = 0;
    write_pages(&commands(), dir, &mut count)?;
    outln!("{count} manual pages are in `{}`", dir.display())?;
    Ok(())
}

/// Returns a manual page, as text for `man`.
fn page(command: Command) -> anyhow::Result<String> {
    let mut text = Vec::new();
    Man::new(command).render(&mut text).context("lay out the manual page")?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Writes the page of a command and those of the commands below it.
fn write_pages(command: &Command, dir: &Path, count: &mut usize) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let path = dir.join(format!("{name}.1"));
    let text = page(command.clone().name(name))?;
    fs::write(&path, text).with_context(|| format!("write `{}`", path.display()))?;
    *count += 1;
    let below = command.get_subcommands();
    for one in below.filter(|one| !one.is_hide_set() && one.get_name() != "help") {
        write_pages(one, dir, count)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn every_shell_has_a_script_that_knows_the_commands() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "baton", &mut script);
            let script = String::from_utf8(script).unwrap();
            for word in ["ask", "serve", "completions", "models-dir"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn every_command_has_a_manual_page() {
        let dir = tempfile::tempdir().unwrap();
        let mut count = 0;
        write_pages(&commands(), dir.path(), &mut count).unwrap();
        for name in ["baton", "baton-ask", "baton-model-pull", "baton-ring-plan"] {
            let text = fs::read_to_string(dir.path().join(format!("{name}.1"))).unwrap();
            assert!(text.contains(".SH NAME") && text.contains(".TH"), "{name}: {text}");
            assert!(text.contains(&name.replace('-', "\\-")), "{name}: {text}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), count);
        let ask = fs::read_to_string(dir.path().join("baton-ask.1")).unwrap();
        assert!(ask.contains("max\\-tokens") && !ask.contains("emulate"), "{ask}");
    }
}
