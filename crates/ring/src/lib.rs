//! What boringtun uses of ring, in its place: docs/decisions/063 says why.
//!
//! Messages without associated data are WireGuard's data messages. They go to [`weft_aead`], if that is the
//! chosen cipher. Handshakes, cookies, and everything where it is not, go to aws-lc.

#![forbid(unsafe_code)]

pub use aws_lc_rs::{constant_time, error};

pub mod aead {
    //! As `ring::aead`.

    use aws_lc_rs::aead as aws_lc;
    use weft_aead::{Cipher, KEY_LEN, Key, NONCE_LEN, TAG_LEN};
    use zeroize::Zeroizing;

    use crate::error::Unspecified;

    pub struct Algorithm(());

    pub static CHACHA20_POLY1305: Algorithm = Algorithm(());

    pub struct Aad<A>(A);

    impl<A: AsRef<[u8]>> Aad<A> {
        pub fn from(aad: A) -> Self {
            Self(aad)
        }
    }

    impl Aad<[u8; 0]> {
        pub fn empty() -> Self {
            Self([])
        }
    }

    pub struct Nonce([u8; NONCE_LEN]);

    impl Nonce {
        pub fn assume_unique_for_key(nonce: [u8; NONCE_LEN]) -> Self {
            Self(nonce)
        }
    }

    pub struct Tag([u8; TAG_LEN]);

    impl AsRef<[u8]> for Tag {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    pub struct UnboundKey(Zeroizing<[u8; KEY_LEN]>);

    impl UnboundKey {
        pub fn new(_: &'static Algorithm, key: &[u8]) -> Result<Self, Unspecified> {
            Ok(Self(Zeroizing::new(key.try_into().map_err(|_| Unspecified)?)))
        }
    }

    /// One copy of a key, for the cipher that was chosen when it was made.
    pub struct LessSafeKey(Inner);

    enum Inner {
        Weft(Key),
        AwsLc(aws_lc::LessSafeKey),
    }

    fn of_aws_lc(key: &[u8; KEY_LEN]) -> Option<aws_lc::LessSafeKey> {
        aws_lc::UnboundKey::new(&aws_lc::CHACHA20_POLY1305, key).ok().map(aws_lc::LessSafeKey::new)
    }

    impl LessSafeKey {
        /// # Panics
        /// If aws-lc cannot allocate.
        #[expect(
            clippy::expect_used,
            clippy::needless_pass_by_value,
            reason = "the signature is that of ring"
        )]
        pub fn new(key: UnboundKey) -> Self {
            let weft = match weft_aead::chosen() {
                Cipher::Avx512 => Key::avx512(&key.0),
                Cipher::Portable => Some(Key::portable(&key.0)),
                Cipher::AwsLc => None,
            };
            Self(match weft {
                Some(key) => Inner::Weft(key),
                None => Inner::AwsLc(of_aws_lc(&key.0).expect("a key has the right length")),
            })
        }

        /// Calls `with` with a key of aws-lc. Handshakes use their keys once.
        fn aws_lc<T>(
            &self,
            with: impl FnOnce(&aws_lc::LessSafeKey) -> Result<T, Unspecified>,
        ) -> Result<T, Unspecified> {
            match &self.0 {
                Inner::AwsLc(key) => with(key),
                Inner::Weft(key) => {
                    let bytes = Zeroizing::new(key.bytes());
                    with(&of_aws_lc(&bytes).ok_or(Unspecified)?)
                }
            }
        }

        #[expect(clippy::needless_pass_by_value, reason = "the signature is that of ring")]
        pub fn seal_in_place_separate_tag<A: AsRef<[u8]>>(
            &self,
            nonce: Nonce,
            aad: Aad<A>,
            in_out: &mut [u8],
        ) -> Result<Tag, Unspecified> {
            self.seal(&nonce.0, aad.0.as_ref(), in_out)
        }

        #[expect(clippy::needless_pass_by_value, reason = "the signature is that of ring")]
        pub fn open_in_place<'in_out, A: AsRef<[u8]>>(
            &self,
            nonce: Nonce,
            aad: Aad<A>,
            in_out: &'in_out mut [u8],
        ) -> Result<&'in_out mut [u8], Unspecified> {
            self.open(&nonce.0, aad.0.as_ref(), in_out)
        }

        // Once here, and not again in boringtun for each kind of associated data.
        fn seal(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], in_out: &mut [u8]) -> Result<Tag, Unspecified> {
            match &self.0 {
                Inner::Weft(key) if aad.is_empty() && in_out.len() <= weft_aead::MAX_LEN => {
                    key.seal(nonce, in_out).map(Tag).map_err(|_| Unspecified)
                }
                _ => self.aws_lc(|key| {
                    let nonce = aws_lc::Nonce::assume_unique_for_key(*nonce);
                    let tag = key.seal_in_place_separate_tag(nonce, aws_lc::Aad::from(aad), in_out)?;
                    Ok(Tag(tag.as_ref().try_into().map_err(|_| Unspecified)?))
                }),
            }
        }

        fn open<'in_out>(
            &self,
            nonce: &[u8; NONCE_LEN],
            aad: &[u8],
            in_out: &'in_out mut [u8],
        ) -> Result<&'in_out mut [u8], Unspecified> {
            match &self.0 {
                Inner::Weft(key) if aad.is_empty() && in_out.len() <= weft_aead::MAX_LEN + TAG_LEN => {
                    let (data, tag) = in_out.split_last_chunk_mut().ok_or(Unspecified)?;
                    key.open(nonce, data, tag).map_err(|_| Unspecified)?;
                    Ok(data)
                }
                _ => self.aws_lc(|key| {
                    let nonce = aws_lc::Nonce::assume_unique_for_key(*nonce);
                    key.open_in_place(nonce, aws_lc::Aad::from(aad), in_out)
                }),
            }
        }
    }
}
