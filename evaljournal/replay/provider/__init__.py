"""What the requests, replies and streams of model providers contain, whichever API they are of: the generic reader.

Two readers exist. The dialects in `runner/calls/dialects` read the reply to a call that this process made, in the one API that
was called; they raise an error if it is not an answer. Everything else asks this package. It recognizes the
APIs by their shape, because a recorded call does not name one, and never fails: content is untrusted, any value may have any
type, and what is not recognized is omitted.

`server_sent_events` splits a stream; `messages` finds messages and tool calls; `reports` finds the model, the usage and the end
of a reply. Pure, as all of `replay`, of which it imports only `text`.
"""
