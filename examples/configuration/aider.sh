# aider: . examples/configuration/aider.sh && aider --model openai/local
export OPENAI_API_BASE=http://127.0.0.1:8080/v1
export OPENAI_API_KEY=none
