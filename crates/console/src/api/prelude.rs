//! Names that all handlers of the API use, and the macros that define handlers.

pub(super) use axum::extract::{Path, Query};
pub(super) use serde::{Deserialize, Serialize};
pub(super) use serde_json::{Map, Value};
pub(super) use utoipa::ToSchema;
pub(super) use utoipa_axum::router::OpenApiRouter;
pub(super) use utoipa_axum::routes;

pub(super) use crate::error::{HandlerResult, HttpError};
pub(super) use crate::http::api_request::ApiRequest;
pub(super) use crate::http::app::App;
pub(super) use crate::http::json::json_response;
pub(super) use crate::options::rights::Scope;
pub(super) use crate::page::read_request::ReadRequest;

/// Defines handlers of GET requests, and `described`, which returns their routes. Each one is a path,
/// a name, the transaction and how the request begins it, parameters with their description, the type
/// of the answer, and the answer.
///
/// A function cannot replace the macro: utoipa reads the description of a handler from an attribute of its own function,
/// so each handler would repeat the attribute, the signature, the transaction and the response, and a list would repeat
/// the names of all handlers. The two macros save about 250 lines. An example, a handler at `/api/v1/runs/{id}` that
/// passes the id of the path to `data` and describes it as a number from 1:
///
/// ```text
/// reads! {
///     /// Returns a run.
///     "/api/v1/runs/{id}" run(tx = transaction, id: Path<String>) [("id" = i64, Path, minimum = 1)] -> [RunDetail] =
///         runs::run::data(&tx, run_id(&id)?).await?;
/// }
/// ```
macro_rules! reads {
    ($(
        $(#[$($doc:tt)*])*
        $path:literal $name:ident($read:ident = $begin:ident $(, $given:ident: $from:ident<$kind:ident>)?)
        [$($params:tt)*] -> [$($body:tt)*] = $data:expr;
    )*) => {
        $(
            $(#[$($doc)*])*
            #[utoipa::path(get, path = $path, params($($params)*), responses((status = 200, body = $($body)*)))]
            async fn $name(mut request: ReadRequest $(, $from($given): $from<$kind>)?) -> HandlerResult {
                let $read = request.$begin().await?;
                Ok(json_response(&$data))
            }
        )*

        pub(super) fn described() -> OpenApiRouter<App> {
            OpenApiRouter::new()$(.routes(routes!($name)))*
        }
    };
}
pub(super) use reads;

/// Defines handlers of POST requests, and `described`, which returns their routes. Each one is a
/// scope, a path, a name, the transaction, the body of the request, an identifier of the path with its
/// parser and its description, the type of the answer, and the change. A macro for the reason that `reads` names.
/// An example, a handler that requires the scope `Operate`:
///
/// ```text
/// changes! {
///     /// Cancels a run.
///     Operate "/api/v1/runs/{id}/cancel"
///     cancel_run(tx, body => CancelRunRequest, id = run_id[i64, Path, minimum = 1]) -> Done {
///         found(run::cancel(tx, id, body.kill).await?, || no_such_run(id))
///     }
/// }
/// ```
macro_rules! changes {
    ($(
        $(#[$($doc:tt)*])*
        $scope:ident $path:tt
        $name:ident($tx:ident, $body:pat => $request:ident $(, $id:ident = $parse:ident[$($described:tt)*])?)
        -> $answer:ident $change:block
    )*) => {
        $(
            $(#[$($doc)*])*
            #[utoipa::path(
                post, path = $path, params($(("id" = $($described)*))?), request_body = $request,
                responses((status = 200, body = $answer))
            )]
            async fn $name($(Path($id): Path<String>,)? call: ApiRequest<$request>) -> HandlerResult {
                $(let $id = $parse(&$id)?;)?
                call.execute(Scope::$scope, async |$tx, $body| $change).await
            }
        )*

        pub(super) fn described() -> OpenApiRouter<App> {
            OpenApiRouter::new()$(.routes(routes!($name)))*
        }
    };
}
pub(super) use changes;
