//! Finds the beginning that all prompts of a scene share: the text of the scene's system message, and what
//! the chat template puts before it.
//!
//! Always: decided by tokens, from the scene alone. A prompt shares its first tokens as far as they are the
//! same as those that the scene fixes. So nothing that a tenant has written is ever among them, however the
//! segments are cut and wherever the template puts a system message.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use baton_engine::prompt::{PromptSegment, assemble};
use baton_engine::tokenizer::TokenId;

use super::Served;
use crate::scene::SceneSettings;

/// The most scenes' texts to remember. Beyond that all are forgotten, and each is tokenized once more.
const REMEMBERED_MAX: usize = 64;

/// The beginnings of scenes' prompts in the tokens of one model.
#[derive(Debug, Default)]
pub(crate) struct ScenePrefixes {
    /// By the scene's system text; versions that differ only in other settings share it.
    known: Mutex<HashMap<String, Arc<[TokenId]>>>,
}

impl ScenePrefixes {
    /// Returns how many tokens at the beginning of `prompt` the scene fixes. Cost: a lookup; the first time,
    /// tokenizing its system text.
    pub(crate) fn shared_tokens(&self, served: &Served, scene: &SceneSettings, prompt: &[TokenId]) -> usize {
        if scene.system.is_empty() {
            return 0;
        }
        let fixed = self.of(served, &scene.system);
        fixed.iter().zip(prompt).take_while(|(fixed, own)| fixed == own).count()
    }

    fn of(&self, served: &Served, system: &str) -> Arc<[TokenId]> {
        if let Some(known) = self.lock().get(system) {
            return known.clone();
        }
        let fixed: Arc<[TokenId]> = fixed_tokens(served, system).into();
        let mut known = self.lock();
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(system.to_owned(), fixed.clone());
        fixed
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<[TokenId]>>> {
        self.known.lock().expect("nothing panics while the beginnings are locked")
    }
}

/// Returns the prompt of this system text and an empty question, up to the end of that text; empty if the
/// template refuses it.
fn fixed_tokens(served: &Served, system: &str) -> Vec<TokenId> {
    let segments = [PromptSegment { role: "system", text: system }, PromptSegment { role: "user", text: "" }];
    let (tokenizer, template) = (served.model.tokenizer(), served.model.template());
    let Ok(mut prompt) = assemble(tokenizer, template, &segments) else { return Vec::new() };
    prompt.ids.truncate(prompt.segments[0].tokens.end);
    prompt.ids
}
