# Programs that use OpenAI's library: . examples/configuration/openai.sh && gptme --model local/local
export OPENAI_BASE_URL=http://127.0.0.1:8080/v1
export OPENAI_API_KEY=none
