"""Coding agents that report their own steps: as JSON lines on standard output, or by the Agent Client Protocol.

Without the gateway, their own report is all that is known. It is recorded as steps, which are never reused: an agent
that is started again makes its calls again. What they report is untrusted.

    reported      what one attempt reports: lines, and steps, which are recorded as they end; both bounded
    transcripts   what Claude Code, Codex and Gemini CLI print
    rpc           JSON-RPC 2.0 with a program, one message per line
    files         the files that an agent may read and write through us
"""
