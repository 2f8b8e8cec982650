"""The shell around the rules: asyncio loops, queues, timers and threads. Decides nothing about the log by itself."""
