"""What psac raises and warns of when privacy is at stake."""


class PrivacyError(RuntimeError):
    """Going on would not be private, or could not be shown to be; nothing was released."""


class PrivacyWarning(UserWarning):
    """The numbers are right, but protect less than they seem to."""
