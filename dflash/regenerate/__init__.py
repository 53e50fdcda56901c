"""Answers by the target: chats in, the same chats out with each assistant turn as the target itself writes it."""
