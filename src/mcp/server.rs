//! The protocol: handshake, the list of tools, and each call in a thread of its own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, ErrorCode, Implementation, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities, ServerConfig,
};
use rmcp::service::{RequestContext, ServerInitializeError};
use rmcp::transport::io::stdio_pipes;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::Desk;
use super::acts;
use super::checks::{Tell, Waiting};
use super::tools::{self, Tool};
use super::wire::Watched;

/// What a model is told about all tools together.
const INSTRUCTIONS: &str = "This project is behind fettlefs. Files are written as always; small changes land in the \
project at once, large and sensitive ones are held for review: you see your version, the project does not have it yet. \
`status` tells what is held and why, `read` sends only what you have not received of a file yet, `patch` replaces exact \
text, `check` runs a command on your version, `request_review` asks the person you work for. Do not work around a hold: \
say what is held, and go on with something else.";

struct Server {
    desk: Arc<Desk>,
    /// Cancelled when standard input has ended, or a signal asks the program to end.
    gone: CancellationToken,
}

/// Answers one client until it closes standard input.
pub fn serve(desk: Desk) -> io::Result<()> {
    // One thread moves the messages; each call has its own.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(converse(desk));
    // A request that has been sent is carried out, whether or not a caller waits for its answer.
    runtime.shutdown_background();
    served
}

async fn converse(desk: Desk) -> io::Result<()> {
    let gone = CancellationToken::new();
    let (input, output) = stdio_pipes();
    let server = Server { desk: Arc::new(desk), gone: gone.clone() };
    let input = Watched::new(input, gone.clone());
    let asked_to_end = end_when_asked(gone)?;
    let service = match server.serve_with_ct((input, output), asked_to_end).await {
        Ok(service) => service,
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => return Ok(()),
        Err(ServerInitializeError::ExpectedInitializeRequest(_)) => {
            return Err(io::Error::other("the client began with something that is no request"));
        }
        Err(err) => return Err(io::Error::other(format!("speak MCP with the client: {err}"))),
    };
    service.waiting().await.map_err(io::Error::other)?;
    Ok(())
}

/// Cancels on the signals that end a program. A check's command, in a process group of its own, would survive them.
fn end_when_asked(gone: CancellationToken) -> io::Result<CancellationToken> {
    let asked = CancellationToken::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        let mut signals = signal(kind)?;
        let (gone, asked) = (gone.clone(), asked.clone());
        tokio::spawn(async move {
            signals.recv().await;
            gone.cancel();
            asked.cancel();
        });
    }
    Ok(asked)
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("fettlefs", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all()))
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method = request.method;
        Err(match OWN_METHODS.contains(&method.as_str()) {
            true => ErrorData::invalid_params(format!("{method}: the params are malformed"), None),
            false => ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("unknown method {method:?}"), None),
        })
    }

    /// A malformed call is an error of the protocol; a refusal by a tool is its result, which a model can read.
    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let tool = Tool::named(&request.name).ok_or_else(|| unknown_tool(&request.name))?;
        let arguments = request.arguments.unwrap_or_default();
        let (desk, waiting) = (self.desk.clone(), self.waiting(&context));
        let call = tokio::task::spawn_blocking(move || acts::call(tool, arguments, &desk, &waiting));
        let called = call.await.map_err(|err| ErrorData::internal_error(format!("{}: {err}", tool.name()), None))?;
        Ok(called.into())
    }
}

/// Methods that the library handles. It passes one on as a custom request only if its parameters are malformed.
const OWN_METHODS: [&str; 4] = ["initialize", "server/discover", "tools/list", "tools/call"];

impl Server {
    fn waiting(&self, context: &RequestContext<RoleServer>) -> Waiting {
        let (peer, runtime) = (context.peer.clone(), Handle::current());
        let tell = context.meta.get_progress_token().map(|token| {
            // One message at a time, and not waited for: a client that does not read must not keep its command running.
            let is_pending = Arc::new(AtomicBool::new(false));
            let tell = move |seconds: f64, message: String| {
                if is_pending.swap(true, Ordering::SeqCst) {
                    return Ok(());
                }
                let told = ProgressNotificationParam::new(token.clone(), seconds).with_message(message);
                let (peer, is_pending) = (peer.clone(), is_pending.clone());
                runtime.spawn(async move {
                    if let Err(err) = peer.notify_progress(told).await {
                        log::debug!("tell of a check's progress: {err}");
                    }
                    is_pending.store(false, Ordering::SeqCst);
                });
                Ok(())
            };
            Box::new(tell) as Tell
        });
        Waiting { cancelled: context.ct.clone(), gone: self.gone.clone(), tell }
    }
}

fn unknown_tool(name: &str) -> ErrorData {
    let names: Vec<_> = Tool::ALL.iter().map(|tool| tool.name()).collect();
    let message = format!("unknown tool {name:?}; there are {}", names.join(", "));
    ErrorData::new(ErrorCode::INVALID_PARAMS, message, None)
}
