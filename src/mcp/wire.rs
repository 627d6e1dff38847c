//! Standard input, watched for its end: a client that closes it no longer waits for an answer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::sync::CancellationToken;

/// Input that announces its end. The protocol's library notices the end too, but then waits for running calls; a check
/// would run on for no one, and might promote.
pub struct Watched<R> {
    input: R,
    ended: CancellationToken,
}

impl<R> Watched<R> {
    pub fn new(input: R, ended: CancellationToken) -> Self {
        Self { input, ended }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Watched<R> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let (had, has_room) = (buffer.filled().len(), buffer.remaining() > 0);
        let polled = Pin::new(&mut this.input).poll_read(context, buffer);
        if let Poll::Ready(read) = &polled
            && (read.is_err() || (has_room && buffer.filled().len() == had))
        {
            this.ended.cancel();
        }
        polled
    }
}
