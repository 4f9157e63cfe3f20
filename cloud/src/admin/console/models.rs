//! The page of the models of this replica.

use askama::Template;
use axum::extract::{Extension, Query, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::{Frame, PageQuery, PageResult, Question, page, to};
use crate::admin::Admin;
use crate::admin::guard::Fields;
use crate::admin::operations::models::{ModelOrder, ModelsView};
use crate::admin::problem::Problem;
use crate::admin::session::Session;

const MIB: u64 = 1 << 20;

struct ModelRow {
    name: String,
    state: String,
    tone: &'static str,
    memory_mib: u64,
    requests: usize,
    waiting: usize,
    problem: Option<String>,
    /// Orders that would do something, in the words of [`ModelOrder::as_str`].
    orders: Vec<&'static str>,
}

#[derive(Template)]
#[template(path = "models.html")]
struct ModelsPage {
    frame: Frame,
    rows: Vec<ModelRow>,
    used_mib: u64,
    budget_mib: Option<u64>,
}

pub(super) async fn list(
    State(admin): State<Admin>,
    session: Session,
    Query(asked): Query<PageQuery>,
) -> Response {
    let view = ModelsView::of(&admin.service);
    let row = |model: crate::admin::operations::models::ModelView| {
        let tone = match model.state.as_str() {
            "loaded" => "good",
            "failed" => "bad",
            _ => "",
        };
        let is_there = matches!(model.state.as_str(), "loaded" | "loading" | "retiring");
        let useful = |order: &ModelOrder| match order {
            ModelOrder::Load => model.drained || !is_there,
            ModelOrder::Unload => is_there,
            ModelOrder::Drain => !model.drained,
        };
        ModelRow {
            orders: ModelOrder::ALL
                .iter()
                .filter(|order| useful(order))
                .map(|order| order.as_str())
                .collect(),
            state: if model.drained { format!("{}, drained", model.state) } else { model.state },
            name: model.name,
            tone,
            memory_mib: model.memory_bytes.div_ceil(MIB),
            requests: model.requests,
            waiting: model.waiting,
            problem: model.problem,
        }
    };
    let shown = ModelsPage {
        frame: Frame::of(&session, "/admin/models", "Models").with_notice(&asked),
        rows: view.models.into_iter().map(row).collect(),
        used_mib: view.used_bytes.div_ceil(MIB),
        budget_mib: view.budget_bytes.map(|bytes| bytes / MIB),
    };
    page(StatusCode::OK, &shown)
}

pub(super) async fn order(
    State(admin): State<Admin>,
    session: Session,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let (name, word) = (fields.text("model"), fields.text("order"));
    let found = ModelOrder::ALL.into_iter().find(|order| order.as_str() == word);
    let order = found.ok_or_else(|| Problem::field("order", &"`order` must be load, unload or drain"))?;
    if order == ModelOrder::Drain {
        let text = format!("This replica takes no new requests for {name}, until the model is loaded here.");
        let (title, button, action) = ("Drain the model?", "Drain", "/admin/models");
        let question = Question { title, text: &text, action, button, back: action };
        if let Some(asked) = question.unless_confirmed(&session, &fields) {
            return Ok(asked);
        }
    }
    admin.operations.order_model(&session.actor(), &admin.service, &name, order).await?;
    Ok(to("/admin/models", "ordered"))
}
