//! Conversations of `baton chat`, and records of answers, kept in SQLite on this device.
//!
//! The file holds what was asked and answered as plain text, and belongs to its user alone. Nothing here
//! leaves the device. Several programs may use one file at once. Always: a question and its answer are
//! stored together, so that a conversation that is taken up again ends with an answer.

mod answers;

pub use answers::{Answered, AuditSummary, Record, Sent, StoredAnswer};

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use sqlx::SqlSafeStr as _;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};

use crate::settings::{create_private, make_private_folder};

/// The file's name.
pub const FILE: &str = "conversations.db";
/// Characters of a title: the beginning of the first question.
const TITLE_CHARS: usize = 80;
/// Characters of what is shown around a found text.
const AROUND_CHARS: usize = 40;
/// Longest wait for another program that writes.
const BUSY: Duration = Duration::from_secs(10);
/// The steps that make the tables.
const STEPS: &[(i64, &str, &str)] = &[
    (1, "conversations", include_str!("../../migrations/device/0001_conversations.sql")),
    (2, "answers", include_str!("../../migrations/device/0002_answers.sql")),
    (3, "receipts", include_str!("../../migrations/device/0003_receipts.sql")),
];

/// Why conversations cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConversationError {
    /// The file cannot be made.
    #[error("keep conversations in `{}`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        err: std::io::Error,
    },
    /// The file is no database of conversations, or of a newer version.
    #[error("read the conversations in `{}`: move the file away, or use the version that wrote it", path.display())]
    Tables {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        err: MigrateError,
    },
    /// The database refuses.
    #[error("use the conversations")]
    Database(#[from] sqlx::Error),
    /// There is none of this number.
    #[error("no conversation {0}; `baton conversations list` shows those that are there")]
    Unknown(i64),
    /// There is no such record.
    #[error("there is no such record; `baton trace` shows those that are there")]
    NoRecord,
}

/// A conversation in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Its number.
    pub id: i64,
    /// The beginning of its first question.
    pub title: String,
    /// When something was last written, in milliseconds since 1970.
    pub updated_ms: i64,
    /// Its questions and answers.
    pub turns: i64,
}

/// A question or an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Turn {
    /// `user` or `assistant`.
    pub role: String,
    /// The text.
    pub text: String,
    /// Tokens that a cloud wrote.
    pub cloud_tokens: i64,
    /// Tokens that this device wrote.
    pub device_tokens: i64,
    /// When it was written, in milliseconds since 1970.
    pub written_ms: i64,
}

/// A whole conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Conversation {
    /// Its number.
    pub id: i64,
    /// The beginning of its first question.
    pub title: String,
    /// Instructions for the model.
    pub system: String,
    /// Questions and answers, in order.
    pub turns: Vec<Turn>,
}

/// A text that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The number of its conversation.
    pub id: i64,
    /// The title of its conversation.
    pub title: String,
    /// Who said it.
    pub role: String,
    /// The text around what was looked for.
    pub excerpt: String,
}

/// An answer with its question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange<'a> {
    /// The question.
    pub question: &'a str,
    /// The answer.
    pub answer: &'a str,
    /// Tokens of the answer that a cloud wrote.
    pub cloud_tokens: usize,
    /// Tokens of the answer that this device wrote.
    pub device_tokens: usize,
}

/// The conversations of a user.
#[derive(Debug, Clone)]
pub struct Conversations {
    pool: SqlitePool,
}

impl Conversations {
    /// Opens the file, or makes it for its user alone.
    ///
    /// # Errors
    /// [`ConversationError`] if it cannot be made or read.
    pub async fn open(path: &Path) -> Result<Self, ConversationError> {
        let failed = |err| ConversationError::File { path: path.to_owned(), err };
        if let Some(folder) = path.parent() {
            make_private_folder(folder).map_err(failed)?;
        }
        if !path.exists() {
            create_private(path).map_err(failed)?;
        }
        let options = SqliteConnectOptions::new()
            .filename(path)
            .foreign_keys(true)
            .busy_timeout(BUSY)
            .journal_mode(SqliteJournalMode::Wal);
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
        let made = tables().run(&pool).await;
        made.map_err(|err| ConversationError::Tables { path: path.to_owned(), err })?;
        Ok(Self { pool })
    }

    /// Stores an exchange at `position` of a conversation, which is its number of turns before the
    /// question: what follows it goes. Without a number a conversation begins. Returns its number.
    ///
    /// # Errors
    /// [`ConversationError`] if the database refuses, or the conversation is gone.
    pub async fn keep(
        &self,
        id: Option<i64>,
        system: &str,
        position: usize,
        exchange: Exchange<'_>,
    ) -> Result<i64, ConversationError> {
        let mut change = self.pool.begin().await?;
        // Two changes in a millisecond, or a clock that was set back, must not change the order.
        let last: (i64,) = sqlx::query_as("SELECT coalesce(max(updated_ms), 0) FROM conversations")
            .fetch_one(&mut *change)
            .await?;
        let now = now().max(last.0 + 1);
        let id = match id {
            Some(id) => {
                let known = sqlx::query("UPDATE conversations SET updated_ms = ? WHERE id = ?");
                let known = known.bind(now).bind(id).execute(&mut *change).await?.rows_affected();
                if known == 0 {
                    return Err(ConversationError::Unknown(id));
                }
                id
            }
            None => {
                let title: String = exchange.question.trim().chars().take(TITLE_CHARS).collect();
                let insert =
                    "INSERT INTO conversations (title, system, created_ms, updated_ms) VALUES (?, ?, ?, ?)";
                let insert =
                    sqlx::query(insert).bind(title.replace('\n', " ")).bind(system).bind(now).bind(now);
                insert.execute(&mut *change).await?.last_insert_rowid()
            }
        };
        let gone = sqlx::query("DELETE FROM turns WHERE conversation = ? AND position >= ?");
        gone.bind(id).bind(position as i64).execute(&mut *change).await?;
        let Exchange { question, answer, cloud_tokens, device_tokens } = exchange;
        for (at, role, text, cloud, device) in
            [(0, "user", question, 0, 0), (1, "assistant", answer, cloud_tokens, device_tokens)]
        {
            let insert = "INSERT INTO turns (conversation, position, role, text, cloud_tokens, device_tokens, written_ms) \
                VALUES (?, ?, ?, ?, ?, ?, ?)";
            let insert = sqlx::query(insert).bind(id).bind((position + at) as i64).bind(role).bind(text);
            insert.bind(cloud as i64).bind(device as i64).bind(now).execute(&mut *change).await?;
        }
        change.commit().await?;
        Ok(id)
    }

    /// Returns the conversations that were used last, the newest first.
    ///
    /// # Errors
    /// [`ConversationError::Database`].
    pub async fn list(&self, most: usize) -> Result<Vec<Listed>, ConversationError> {
        let query = "SELECT id, title, updated_ms, (SELECT count(*) FROM turns WHERE conversation = id) \
            FROM conversations ORDER BY updated_ms DESC, id DESC LIMIT ?";
        let rows: Vec<(i64, String, i64, i64)> =
            sqlx::query_as(query).bind(most as i64).fetch_all(&self.pool).await?;
        let listed = |(id, title, updated_ms, turns)| Listed { id, title, updated_ms, turns };
        Ok(rows.into_iter().map(listed).collect())
    }

    /// Returns a conversation; without a number, the one that was used last.
    ///
    /// # Errors
    /// [`ConversationError::Unknown`] if there is none.
    pub async fn read(&self, id: Option<i64>) -> Result<Conversation, ConversationError> {
        let query = "SELECT id, title, system FROM conversations WHERE ? IS NULL OR id = ? \
            ORDER BY updated_ms DESC, id DESC LIMIT 1";
        let row: Option<(i64, String, String)> =
            sqlx::query_as(query).bind(id).bind(id).fetch_optional(&self.pool).await?;
        let (id, title, system) = row.ok_or(ConversationError::Unknown(id.unwrap_or(0)))?;
        let query = "SELECT role, text, cloud_tokens, device_tokens, written_ms FROM turns \
            WHERE conversation = ? ORDER BY position";
        let rows: Vec<(String, String, i64, i64, i64)> =
            sqlx::query_as(query).bind(id).fetch_all(&self.pool).await?;
        let turn = |(role, text, cloud_tokens, device_tokens, written_ms)| Turn {
            role,
            text,
            cloud_tokens,
            device_tokens,
            written_ms,
        };
        Ok(Conversation { id, title, system, turns: rows.into_iter().map(turn).collect() })
    }

    /// Returns texts that hold `words` as they are, the newest first. Small and capital letters of ASCII
    /// are alike.
    ///
    /// # Errors
    /// [`ConversationError::Database`].
    pub async fn search(&self, words: &str, most: usize) -> Result<Vec<Found>, ConversationError> {
        let query = "SELECT conversations.id, title, role, text FROM turns \
            JOIN conversations ON conversations.id = turns.conversation \
            WHERE instr(lower(text), lower(?)) > 0 ORDER BY written_ms DESC, position DESC LIMIT ?";
        let rows: Vec<(i64, String, String, String)> =
            sqlx::query_as(query).bind(words).bind(most as i64).fetch_all(&self.pool).await?;
        let found = |(id, title, role, text): (i64, String, String, String)| {
            let excerpt = excerpt(&text, words);
            Found { id, title, role, excerpt }
        };
        Ok(rows.into_iter().map(found).collect())
    }

    /// Forgets a conversation.
    ///
    /// # Errors
    /// [`ConversationError::Unknown`] if there is none of this number.
    pub async fn remove(&self, id: i64) -> Result<(), ConversationError> {
        let gone = sqlx::query("DELETE FROM conversations WHERE id = ?").bind(id).execute(&self.pool).await?;
        if gone.rows_affected() == 0 { Err(ConversationError::Unknown(id)) } else { Ok(()) }
    }
}

impl Conversation {
    /// Returns it as Markdown.
    pub fn markdown(&self) -> String {
        let mut out = format!("# {}\n", self.title);
        for Turn { role, text, .. } in &self.turns {
            let who = if role == "user" { "Question" } else { "Answer" };
            out += &format!("\n## {who}\n\n{}\n", text.trim_end());
        }
        out
    }
}

fn tables() -> Migrator {
    let step = |(version, name, sql): &(i64, &'static str, &'static str)| {
        Migration::new(*version, (*name).into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    Migrator::with_migrations(STEPS.iter().map(step).collect())
}

/// Returns the text around `words`, on one line.
fn excerpt(text: &str, words: &str) -> String {
    let at = text.to_ascii_lowercase().find(&words.to_ascii_lowercase()).unwrap_or(0);
    let before: Vec<char> = text[..at].chars().rev().take(AROUND_CHARS).collect();
    let after = text[at..].chars().take(words.chars().count() + AROUND_CHARS);
    let around: String = before.into_iter().rev().chain(after).collect();
    around.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the time in milliseconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange<'a>(question: &'a str, answer: &'a str) -> Exchange<'a> {
        Exchange { question, answer, cloud_tokens: 3, device_tokens: 4 }
    }

    async fn opened() -> (tempfile::TempDir, Conversations) {
        let folder = tempfile::tempdir().unwrap();
        let conversations = Conversations::open(&folder.path().join("deep").join(FILE)).await.unwrap();
        (folder, conversations)
    }

    #[tokio::test]
    async fn a_conversation_is_kept_taken_up_and_changed() {
        let (folder, kept) = opened().await;
        assert!(matches!(kept.read(None).await, Err(ConversationError::Unknown(0))));
        let id = kept.keep(None, "Be brief.", 0, exchange("What is\na river?", "Water.")).await.unwrap();
        kept.keep(Some(id), "", 2, exchange("And a lake?", "More water.")).await.unwrap();
        let other = kept.keep(None, "", 0, exchange("Other", "Yes.")).await.unwrap();
        kept.keep(Some(id), "", 2, exchange("And a pond?", "Less.")).await.unwrap();
        drop(kept);
        let kept = Conversations::open(&folder.path().join("deep").join(FILE)).await.unwrap();
        let read = kept.read(Some(id)).await.unwrap();
        let texts: Vec<&str> = read.turns.iter().map(|turn| turn.text.as_str()).collect();
        assert_eq!(texts, ["What is\na river?", "Water.", "And a pond?", "Less."]);
        assert_eq!((read.title.as_str(), read.system.as_str()), ("What is a river?", "Be brief."));
        let last = read.turns.last().unwrap();
        assert_eq!((last.role.as_str(), last.cloud_tokens, last.device_tokens), ("assistant", 3, 4));
        assert_eq!(
            read.markdown(),
            "# What is a river?\n\n## Question\n\nWhat is\na river?\n\n## Answer\n\nWater.\n\n## Question\n\nAnd a pond?\n\n## Answer\n\nLess.\n"
        );
        let listed = kept.list(10).await.unwrap();
        assert_eq!(listed.iter().map(|one| (one.id, one.turns)).collect::<Vec<_>>(), [(id, 4), (other, 2)]);
        assert_eq!(kept.list(1).await.unwrap().len(), 1);
        kept.remove(id).await.unwrap();
        assert!(matches!(kept.remove(id).await, Err(ConversationError::Unknown(_))));
        assert!(matches!(
            kept.keep(Some(id), "", 0, exchange("a", "b")).await,
            Err(ConversationError::Unknown(_))
        ));
        assert_eq!(kept.read(None).await.unwrap().id, other);
        assert!(kept.search("pond", 10).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn words_are_found_as_they_are() {
        let (_folder, kept) = opened().await;
        let long = format!("{} The 100% RIVER_bed {}", "before ".repeat(20), "after ".repeat(20));
        let id = kept.keep(None, "", 0, exchange(&long, "长江和黄河")).await.unwrap();
        for words in ["river_bed", "100% river", "黄河"] {
            let found = kept.search(words, 10).await.unwrap();
            assert_eq!(found.len(), 1, "{words}");
            assert_eq!(found[0].id, id);
            assert!(
                found[0].excerpt.to_lowercase().contains(words) && found[0].excerpt.len() < 200,
                "{found:?}"
            );
        }
        for words in ["river bed", "%", "_"] {
            assert_eq!(
                kept.search(words, 10).await.unwrap().len(),
                usize::from(words != "river bed"),
                "{words}"
            );
        }
    }

    #[tokio::test]
    async fn a_file_that_is_none_is_refused_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        std::fs::write(&path, "no database, and long enough to be one".repeat(200)).unwrap();
        assert!(Conversations::open(&path).await.is_err());
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("no database"));
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn the_file_is_the_users_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let (folder, _kept) = opened().await;
        let mode = std::fs::metadata(folder.path().join("deep").join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
