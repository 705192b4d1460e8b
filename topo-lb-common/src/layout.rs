//! One definition for a layout that differs only in the size of an address between IPv4 and IPv6.

/// Defines a generic layout and its two instances. With the feature `user`, the instances have byte
/// casts. A layout with padding, or with a field that is not plain bytes, does not compile.
macro_rules! layout {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident<$($parameter:ident),+> as
            $($alias:ident<$($argument:ty),+>),+
        {
            $($(#[$field_attribute:meta])* pub $field:ident: $type:ty,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name<$($parameter),+> {
            $($(#[$field_attribute])* pub $field: $type,)+
        }

        impl<$($parameter),+> $name<$($parameter),+> {
            const HAS_NO_PADDING: () = assert!(size_of::<Self>() == 0 $(+ size_of::<$type>())+);
        }

        $(
            #[doc = concat!("[`", stringify!($name), "`] of one address family.")]
            pub type $alias = $name<$($argument),+>;

            const _: () = $alias::HAS_NO_PADDING;

            #[cfg(feature = "user")]
            // SAFETY: `HAS_NO_PADDING` and `check_fields` have checked what the traits ask for.
            unsafe impl bytemuck::Zeroable for $alias {}
            #[cfg(feature = "user")]
            // SAFETY: as above.
            unsafe impl bytemuck::Pod for $alias {}
        )+

        #[cfg(feature = "user")]
        const _: () = {
            const fn plain<T: bytemuck::Pod>() {}
            const fn check_fields<$($parameter: bytemuck::Pod),+>() {
                $(plain::<$type>();)+
            }
            $(check_fields::<$($argument),+>();)+
        };
    };
}

pub(crate) use layout;
