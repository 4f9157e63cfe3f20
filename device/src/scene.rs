//! Finds the scene that a question is asked with: the cloud's, the remembered one, or a built-in one.

use crate::client::{CloudClient, SceneReply};
use crate::privacy::PublicName;
use crate::relay::{CloudFault, Note};
use crate::settings::{CachedScene, Settings};
use baton_protocol::{SceneInfo, SceneSettings};
use tracing::warn;

/// Returns the scene for a device that never reached a cloud. Version 0 is never sent.
pub fn built_in(id: &str) -> SceneInfo {
    let refine = id != "doc-qa-full";
    let system = if id == "chat" { "" } else { "You answer from the document." };
    let settings = SceneSettings {
        question_prefix: "\n\nQuestion: ".to_owned(),
        ratio: Some(if refine { 0.25 } else { 1.0 }),
        xi: if refine { 0.25 } else { 1.0 },
        assist_floor: 1,
        assist_max: 65_536,
        refine,
        model: Some("default".to_owned()),
        ..SceneSettings::with_system(system)
    };
    SceneInfo {
        id: id.to_owned(),
        version: 0,
        settings,
        tokenizer_sha256: None,
        prompt_tokens_max: None,
        call_markup: None,
    }
}

/// Returns the scene to use. A cloud that cannot be reached is no error: the note says what is used instead.
///
/// # Errors
/// [`CloudFault`] if the cloud answers that there is no such scene, or if its name may not be sent: another
/// try would not help.
pub async fn find(
    client: Option<&CloudClient>,
    cloud: &str,
    settings: Option<&Settings>,
    id: &str,
) -> Result<(SceneInfo, Option<Note>), CloudFault> {
    let cached = settings.and_then(|s| s.scene(cloud, id));
    let Some(client) = client else { return Ok((cached.map_or_else(|| built_in(id), |c| c.scene), None)) };
    let name = PublicName::new("scene", id).map_err(|err| CloudFault::Privacy { reason: err.to_string() })?;
    let etag = cached.as_ref().and_then(|c| c.etag.as_deref());
    match (client.scene(&name, etag).await, cached) {
        (Ok(SceneReply::Scene { scene, etag }), _) => {
            let fresh = CachedScene { cloud: cloud.to_owned(), etag, scene: *scene };
            if let Some(Err(err)) = settings.map(|s| s.remember_scene(&fresh)) {
                warn!(%err, "scene not remembered");
            }
            Ok((fresh.scene, None))
        }
        (Ok(SceneReply::NotModified), Some(cached)) => Ok((cached.scene, None)),
        (Ok(SceneReply::NotModified), None) => {
            Ok((built_in(id), Some(note(id, "not modified, but not known here".into(), "built-in"))))
        }
        (Err(fault @ CloudFault::Refused { status: 404, .. }), _) => Err(fault),
        (Err(fault), Some(cached)) => Ok((cached.scene, Some(note(id, fault.to_string(), "cached")))),
        (Err(fault), None) => Ok((built_in(id), Some(note(id, fault.to_string(), "built-in")))),
    }
}

fn note(scene: &str, reason: String, used: &'static str) -> Note {
    Note::SceneNotFetched { scene: scene.to_owned(), reason, used }
}
