"""The patch set for people who build their own torch: making it, putting it in and out, and checking it.

Everything here runs on the standard library alone and never imports torch, which may be the very thing being patched.
The commands are the scripts one folder up; docs/patches.md tells their story.
"""
