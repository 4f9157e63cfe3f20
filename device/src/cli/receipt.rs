//! `baton receipt`: what of the user's texts left this device for an answer, signed with the device's key.

use std::fs::File;
use std::io::{Read as _, stdin};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use baton_registry::envelope::{ENVELOPE_BYTES_MAX, PublicKey};
use baton_terminal::outln;
use clap::{Args, Subcommand};
use serde_json::json;

use super::conversations::KeptArgs;
use super::document;
use super::secrets::PassphraseArgs;
use crate::conversations::StoredAnswer;
use crate::privacy::Span;
use crate::receipt::{Purpose, Receipt, ReceiptError, SentRequest, Written, signing_key};
use crate::relay::Source;

/// Text below the options.
pub(super) const HELP: &str = "\
A receipt is made with the record of an answer (see `baton trace`) and signed with a key of this device. It says which bytes
of your texts left, where placeholders stand for private values, what the bytes sent were, and who wrote each token. It holds
no text. Its places are bytes of the texts as `baton` read them: of a PDF, the text in it.";

#[derive(Debug, Args)]
pub(super) struct ReceiptArgs {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    kept: KeptArgs,
    #[command(flatten)]
    passphrase: PassphraseArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print a receipt for people; with --json, exactly the JSON that is signed
    Show {
        /// The answer's number, or a file with a receipt [default: the last answer]
        #[arg(value_name = "ID|FILE")]
        of: Option<String>,
    },
    /// Print the signed receipt, to keep it in a file or to give it to somebody
    Export {
        /// The answer's number [default: the last answer]
        id: Option<i64>,
    },
    /// Check that a receipt is as it was signed, and of an answer also that its record is as it was then
    Verify {
        /// The answer's number, or a file with a receipt, `-` for standard input [default: the last answer]
        #[arg(value_name = "ID|FILE")]
        of: Option<String>,
        /// The public key that must have signed it [default: this device's own]
        #[arg(long, value_name = "HEX")]
        key: Option<PublicKey>,
        /// Also check that the receipt's ranges of this document are what was sent of it
        #[arg(long, value_name = "FILE")]
        document: Option<PathBuf>,
    },
    /// Print this device's public key, by which others check its receipts
    Key,
}

/// A receipt as it was found.
struct Found {
    signed: Vec<u8>,
    /// The record that it lies in.
    record: Option<(i64, StoredAnswer)>,
}

pub(super) async fn run(args: ReceiptArgs) -> anyhow::Result<()> {
    let ReceiptArgs { command, kept, passphrase } = args;
    match command {
        Command::Show { of } => {
            let found = found(&kept, of.as_deref()).await?;
            let receipt = Receipt::read(&found.signed)?;
            if kept.json {
                return Ok(outln!("{}", serde_json::to_string(&receipt)?)?);
            }
            show(&receipt, found.record.map(|(id, _)| id))
        }
        Command::Export { id } => {
            let of = id.map(|id| id.to_string());
            let found = found(&kept, of.as_deref()).await?;
            Ok(outln!("{}", String::from_utf8_lossy(&found.signed))?)
        }
        Command::Verify { of, key, document } => {
            let found = found(&kept, of.as_deref()).await?;
            verify(&kept, &found, key.ok_or(&passphrase), document.as_deref()).await
        }
        Command::Key => {
            let key = own_key(&kept, &passphrase)?;
            match kept.json {
                true => outln!("{}", json!({ "key": key }))?,
                false => outln!("{key}")?,
            }
            Ok(())
        }
    }
}

/// Returns this device's public key.
fn own_key(kept: &KeptArgs, passphrase: &PassphraseArgs) -> anyhow::Result<PublicKey> {
    let keys = passphrase.keys(&kept.settings()).context("no folder for the key: pass --config-dir")?;
    Ok(signing_key(&keys)?.public())
}

/// Returns the receipt of the answer with this number, or in this file.
async fn found(kept: &KeptArgs, of: Option<&str>) -> anyhow::Result<Found> {
    let id = match of.map(|of| (of, of.parse::<i64>())) {
        None => None,
        Some((_, Ok(id))) => Some(id),
        Some((path, Err(_))) => return in_file(path),
    };
    let (id, mut stored) = kept.open().await?.stored_answer(id).await?;
    let signed = stored.receipt.take().ok_or(ReceiptError::Missing(id))?.into_bytes();
    Ok(Found { signed, record: Some((id, stored)) })
}

fn in_file(path: &str) -> anyhow::Result<Found> {
    let most = ENVELOPE_BYTES_MAX as u64 + 1;
    let mut signed = Vec::new();
    let read = match path {
        "-" => stdin().take(most).read_to_end(&mut signed),
        path => File::open(path).and_then(|file| file.take(most).read_to_end(&mut signed)),
    };
    read.with_context(|| format!("read the receipt `{path}`"))?;
    Ok(Found { signed, record: None })
}

async fn verify(
    kept: &KeptArgs,
    found: &Found,
    key: Result<PublicKey, &PassphraseArgs>,
    document: Option<&Path>,
) -> anyhow::Result<()> {
    let receipt = Receipt::read(&found.signed)?;
    let whose = if key.is_ok() { "the key" } else { "this device's key" };
    receipt.check_key(match key {
        Ok(key) => key,
        Err(passphrase) => own_key(kept, passphrase)?,
    })?;
    if let Some((_, stored)) = &found.record {
        receipt.check_record(stored)?;
    }
    let mut places = Vec::new();
    if let Some(path) = document {
        let Some((_, stored)) = &found.record else {
            bail!("--document needs the answer's number: what was sent is in its record, not in a file");
        };
        places = receipt.check_document(stored, &document::read(path).await?)?;
    }
    if kept.json {
        let id = found.record.as_ref().map(|(id, _)| id);
        let told = json!({ "holds": true, "key": receipt.key, "answer": id, "document": places });
        return Ok(outln!("{told}")?);
    }
    outln!("the receipt is as it was signed with {whose} {}", receipt.key)?;
    if let Some((id, stored)) = &found.record {
        outln!("the record of answer {id} is as it was when the receipt was signed")?;
        if stored.sent.is_some() {
            outln!("the request in the record is, byte for byte, one that was sent")?;
        }
    }
    for place in places {
        outln!("the ranges of {place} make, of this document, the text that was sent")?;
    }
    Ok(())
}

fn show(receipt: &Receipt, id: Option<i64>) -> anyhow::Result<()> {
    let id = id.map(|id| format!(" {id}")).unwrap_or_default();
    outln!("receipt of answer{id} by `{}`, ended {} ms after 1970", receipt.asked_by, receipt.ended_ms)?;
    outln!("signed with key {}", receipt.key)?;
    if receipt.requests.is_empty() {
        outln!("\nnothing was sent")?;
    }
    for request in &receipt.requests {
        show_request(request)?;
    }
    outln!("\ntokens that were shown")?;
    for Written { from, to, by, verified_by } in &receipt.tokens {
        let verified = verified_by.map(|by| format!(", verified by {}", name(by))).unwrap_or_default();
        outln!("  {from}..{to} written by {}{verified}", name(*by))?;
    }
    outln!("\nthis device: {}", receipt.device.program)?;
    if let Some(model) = &receipt.device.model {
        let adapter = model.adapter.as_deref().map(|name| format!(", adapter `{name}`")).unwrap_or_default();
        outln!("  model `{}`{adapter}, fingerprint {}", model.name, model.fingerprint)?;
        if let Some(pair) = &model.pair {
            outln!("  version in the registry: {pair}")?;
        }
    }
    if let Some(cloud) = &receipt.cloud {
        let said = |name: &Option<String>| name.clone().unwrap_or_else(|| "not told".to_owned());
        outln!(
            "the cloud, as it says: model `{}`, version {} of the scene",
            said(&cloud.model),
            cloud.scene_version
        )?;
        outln!("  tokenizer {}", said(&cloud.tokenizer_sha256))?;
    }
    Ok(())
}

fn name(source: Source) -> &'static str {
    match source {
        Source::Cloud => "the cloud",
        Source::Device => "this device",
    }
}

fn show_request(request: &SentRequest) -> anyhow::Result<()> {
    let purpose = match request.purpose {
        Purpose::Answer => "for the answer",
        Purpose::Continue => "to go on with the answer",
        Purpose::Audit => "to compare routes",
        Purpose::Verify => "to have a draft of the answer checked",
    };
    outln!("\nsent {purpose} to {}", request.url)?;
    let coded = request.encoding.as_deref().map(|name| format!(" with {name}")).unwrap_or_default();
    outln!("  body{coded}: {} bytes, {}", request.body.bytes, request.body.digest)?;
    if request.encoding.is_some() {
        outln!("  its JSON: {} bytes, {}", request.json.bytes, request.json.digest)?;
    }
    if request.purpose == Purpose::Verify {
        return Ok(outln!("  ids of tokens that this device wrote, no text of yours")?);
    }
    let (sent, stayed) = request.given_bytes();
    outln!("  of the texts, {sent} bytes left as they are and {stayed} stayed here")?;
    for text in &request.texts {
        let role = text.role.map(|role| format!(" ({})", role.as_str())).unwrap_or_default();
        outln!("  {}{role}, {} bytes", text.text, text.given_bytes)?;
        let mut from = 0;
        for part in &text.parts {
            let Some([start, end]) = part.range() else { continue };
            if start > from {
                outln!("    {from}..{start} left out, stayed here")?;
            }
            match part {
                Span::Replaced { kind, by, .. } => {
                    outln!("    {start}..{end} stayed here ({}), sent as {by}", kind.label())?;
                }
                Span::Sent(_) | Span::Added(_) => outln!("    {start}..{end} sent")?,
            }
            from = end;
        }
        if from < text.given_bytes {
            outln!("    {from}..{} left out, stayed here", text.given_bytes)?;
        }
    }
    Ok(())
}
