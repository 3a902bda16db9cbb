//! The byte stream of a connection: TCP, a Unix socket, or TLS over TCP.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use crate::server::acceptor::Accepted;
use crate::server::tls::Tls;

/// A connection's byte stream.
pub enum Socket {
    /// TCP without encryption.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
    /// TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Socket {
    /// Registers an accepted socket with this thread's runtime.
    pub fn new(accepted: Accepted) -> io::Result<Self> {
        Ok(match accepted {
            Accepted::Tcp(socket) => Self::Tcp(TcpStream::from_std(socket)?),
            Accepted::Unix(socket) => Self::Unix(UnixStream::from_std(socket)?),
        })
    }

    /// Whether TLS can be used on this socket. Like PostgreSQL, the server offers it only on TCP.
    pub fn takes_tls(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// Performs the TLS handshake as the server.
    pub async fn with_tls(self, tls: &Tls) -> io::Result<Self> {
        match self {
            Self::Tcp(socket) => Ok(Self::Tls(Box::new(tls.acceptor().accept(socket).await?))),
            other => Ok(other),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Unix(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Tls(socket) => Pin::new(socket).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_write(cx, buf),
            Self::Unix(socket) => Pin::new(socket).poll_write(cx, buf),
            Self::Tls(socket) => Pin::new(socket).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_flush(cx),
            Self::Unix(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(socket) => Pin::new(socket).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Unix(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(socket) => Pin::new(socket).poll_shutdown(cx),
        }
    }
}
