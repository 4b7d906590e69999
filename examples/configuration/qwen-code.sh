# Qwen Code: . examples/configuration/qwen-code.sh && qwen
export OPENAI_BASE_URL=http://127.0.0.1:8080/v1
export OPENAI_API_KEY=none OPENAI_MODEL=local
