//! `AsyncRead` and `AsyncWrite` for enums of streams.

/// Implements `AsyncRead` and `AsyncWrite` for an enum with one stream per variant, without boxing: a read costs a jump
/// only.
macro_rules! streams {
    ($of:ident: $($variant:ident),+) => {
        impl tokio::io::AsyncRead for $of {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                out: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                match self.get_mut() {
                    $($of::$variant(it) => std::pin::Pin::new(it).poll_read(cx, out),)+
                }
            }
        }

        impl tokio::io::AsyncWrite for $of {
            fn poll_write(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                bytes: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                match self.get_mut() {
                    $($of::$variant(it) => std::pin::Pin::new(it).poll_write(cx, bytes),)+
                }
            }

            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                slices: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                match self.get_mut() {
                    $($of::$variant(it) => std::pin::Pin::new(it).poll_write_vectored(cx, slices),)+
                }
            }

            fn is_write_vectored(&self) -> bool {
                match self {
                    $($of::$variant(it) => it.is_write_vectored(),)+
                }
            }

            fn poll_flush(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                match self.get_mut() {
                    $($of::$variant(it) => std::pin::Pin::new(it).poll_flush(cx),)+
                }
            }

            fn poll_shutdown(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                match self.get_mut() {
                    $($of::$variant(it) => std::pin::Pin::new(it).poll_shutdown(cx),)+
                }
            }
        }
    };
}

pub(in crate::egress) use streams;
